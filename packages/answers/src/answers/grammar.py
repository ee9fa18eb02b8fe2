r"""One expression as a tree, by a strict grammar that refuses whatever is not in it.

The tree tells where mathematicians would disagree (``1/2\pi``, ``1\frac{1}{2}``, ``50\%``).
Nothing is computed here, and nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from answers.nodes import Node, Unreadable, integer, multiply, read_repeating
from answers.tokens import Token, tokenize

MAX_DEPTH = 30
_MAX_TOKENS = 2_000
_MAX_CHARS = 20_000
_MAX_DIGITS = 1_200
_MAX_LETTERS = 3  # longer runs of letters are words, not products
_POSTFIX = {"!": "factorial", "%": "percent", "°": "degree"}
_CLOSERS = {
    "(": (")", "]"),
    "[": ("]", ")"),
    "{": ("}",),
    "|": ("|",),
    r"\lfloor": (r"\rfloor",),
    r"\lceil": (r"\rceil",),
}
_KINDS_OF_BRACKETS = {"|": "absolute", r"\lfloor": "floor", r"\lceil": "ceiling"}
# Before a bracket these letters are rarely factors.
_FUNCTION_LETTERS = frozenset("fghFGHPQRTp")
_TWO_ARGUMENTS = {r"\frac": "fraction", r"\binom": "binomial"}
_COMPLEX = {r"\Re": "re", r"\Im": "im", r"\overline": "conjugate"}
_ROOTS = {"√": 2, "∛": 3}
_TIMES = ("*", r"\times")
_PLUS_MINUS = (r"\pm", r"\mp")
_INFIX = {r"\over": "fraction", r"\choose": "binomial"}


def read_expression(text: str, *, as_answer: bool = False) -> Node:
    r"""Read a whole text as one expression.

    With ``as_answer`` a number may be a factor after another one, as in ``n2^n``, and ``\ln 2/3``
    is a third of ``\ln 2``.

    Raises:
        Unreadable: if the text is not in the grammar.
    """
    tokens = tokenize(text) if len(text) <= _MAX_CHARS else []
    return read_tree(tokens, as_answer=as_answer)


def read_tree(side: Iterable[Token], *, as_answer: bool = False) -> Node:
    tokens = _split_letters(list(side))
    if not 0 < len(tokens) <= _MAX_TOKENS:
        raise Unreadable("nothing, or a very long expression")
    reader = _Reader(tokens, as_answer=as_answer)
    tree = reader.read_infix()
    if reader.token is not None:
        raise Unreadable(reader.token.text)
    return tree


def _split_letters(side: list[Token]) -> list[Token]:
    """Make each letter a token, and an ``x`` between two numbers their product."""
    tokens = list[Token]()
    for at, token in enumerate(side):
        if token.kind in ("roman", "accent"):
            tokens.append(token._replace(kind="name"))
        elif token.kind != "letters":
            tokens.append(token)
        elif token.text in "xX" and _is_times_sign(side, at):
            tokens.append(token._replace(kind="operator", text="*"))
        elif len(token.text) > _MAX_LETTERS or not token.text.isalpha():
            raise Unreadable(f"the word {token.text}")
        else:
            tokens += (token._replace(kind="name", text=letter) for letter in token.text)
    return tokens


def _is_times_sign(side: list[Token], at: int) -> bool:
    if not 0 < at < len(side) - 1:
        return False
    are_numbers = side[at - 1].kind == side[at + 1].kind == "number"
    return are_numbers and side[at].gap == side[at + 1].gap


def _has_vector(tree: Node) -> bool:
    return any(r"\vec" in node.letter for node in tree.walk())


class _Reader:
    """A recursive descent over tokens; `_at` is the place of the next one."""

    def __init__(self, tokens: list[Token], *, as_answer: bool) -> None:
        self._tokens = tokens
        self._as_answer = as_answer
        self._at = 0
        self._depth = 0
        self._open_bars = 0
        # The place of a number whose first digit was the argument of a command.
        self._remainder_at = -1

    @property
    def token(self) -> Token | None:
        if self._at < len(self._tokens):
            return self._tokens[self._at]
        return None

    def _is_next(self, *texts: str) -> bool:
        return self.token is not None and self.token.text in texts

    def _take(self, *texts: str) -> str | None:
        token = self.token
        if token is None or token.text not in texts or token.kind == "words":
            return None
        self._at += 1
        return token.text

    def _take_all(self, *texts: str) -> bool:
        end = self._at + len(texts)
        if texts != tuple(token.text for token in self._tokens[self._at : end]):
            return False
        self._at = end
        return True

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")

    def read_infix(self) -> Node:
        tree = self._read_sum()
        infix = self._take(*_INFIX)
        if infix:
            return Node(_INFIX[infix], (tree, self._read_sum()))
        return tree

    def _read_sum(self) -> Node:
        self._go_deeper()
        tree = self._read_signed_product()
        while sign := self._take("+", "-", *_PLUS_MINUS):
            parts = (tree, self._read_signed_product())
            tree = Node(sign, parts) if sign in "+-" else Node("plusminus", parts, letter=sign)
        self._depth -= 1
        return tree

    def _read_signed_product(self) -> Node:
        sign = self._take("+", "-", *_PLUS_MINUS)
        product = self._read_product()
        if sign == "-":
            return Node("negative", (product,))
        if sign in _PLUS_MINUS:
            return Node("plusminus", (integer(0), product), letter=sign)
        return product

    def _read_product(self) -> Node:
        tree = multiply(self._read_factors())
        while operator := self._take(*_TIMES, "/"):
            sign = self._take("+", "-")
            factors = self._read_factors()
            if operator == r"\times" and _has_vector(tree):
                raise Unreadable("a product of vectors, whose order matters")
            if operator != "/":
                tree = Node("*", (tree, multiply(factors)))
            elif len(factors) == 1:
                tree = Node("/", (tree, factors[0]))
            else:
                tree = Node("slash", (tree, factors[0], multiply(factors[1:])))
            if sign == "-":
                tree = Node("negative", (tree,))
        return tree

    def _read_factors(self) -> list[Node]:
        factors = [self._read_factor()]
        while self._is_factor_next(factors[-1]):
            factors.append(self._read_factor())
        return factors

    def _is_factor_next(self, last: Node) -> bool:
        token = self.token
        if token is None:
            return False
        if token.kind in {"close", "operator"} or token.text in _INFIX:
            return token.text in _ROOTS
        if token.kind == "bar" and self._open_bars:
            return False
        if token.kind == "number" and not self._is_number_a_factor(last):
            raise Unreadable("a number after another factor")
        if token.text == "(" and self._is_call(last):
            raise Unreadable("perhaps the argument of a function")
        return True

    def _is_call(self, last: Node) -> bool:
        """Return whether brackets hold an argument: ``g(x + 1)``, but not ``g(M - m)``."""
        is_in_brackets = self._tokens[self._at - 1].kind == "close"
        is_function = last.letter in _FUNCTION_LETTERS or "'" in last.letter
        if is_in_brackets or not is_function:
            return False
        names = set[str]()
        depth = 0
        for at, token in enumerate(self._tokens[self._at :], start=self._at):
            depth += (token.kind == "open") - (token.kind == "close")
            if depth == 0:
                break
            if token.kind == "name":
                index = [piece.text for piece in self._tokens[at + 1 : at + 4]]
                if index[:1] != ["_"]:
                    index = []
                names.add(token.text + "".join(index))
        before = self._tokens[max(0, self._at - 2) : self._at]
        if [token.text for token in before] == ["m", "g"]:  # a weight
            return False
        return len(names) < 2 and last.letter not in names

    def _is_number_a_factor(self, last: Node) -> bool:
        """Return whether the next number is a factor, as in ``n2^n``; ``x2`` may be ``x_2``."""
        if not self._as_answer or self._at == self._remainder_at:
            return False
        before, token, *after = self._tokens[self._at - 1 : self._at + 2]
        if before.text == "!":
            return True
        is_closed = before.kind == "close" and last.kind != "numeral"
        if after and after[0].text == "^":
            is_digit = token.gap and len(before.text) == 1 and last.kind == "^"
            return is_closed or before.kind == "name" or before.text == r"\pi" or is_digit
        return is_closed and bool(last.letters)

    def _read_factor(self) -> Node:
        node = self._read_operand()
        is_raised = False
        while token := self.token:
            if token.kind == "operator" and token.text in _POSTFIX:
                node = self._read_postfix(node, token.text)
            elif token.text != "^":
                break
            elif is_raised:
                raise Unreadable("a power of a power without brackets")
            else:
                self._at += 1
                node = Node("^", (node, self._read_exponent()))
                is_raised = True
        return node

    def _read_postfix(self, node: Node, text: str) -> Node:
        kind = _POSTFIX[text]
        if self._take_all("!", "!"):
            kind = "double_factorial"
        else:
            self._at += 1
        if kind == "percent" and node.kind != "number":
            raise Unreadable("per cent of something other than a number")
        if "factorial" in kind and self._is_next("!"):
            raise Unreadable("a factorial of factorials without brackets")
        return Node(kind, (node,))

    def _read_exponent(self) -> Node:
        sign = self._take("-", "+")
        exponent = self._read_argument()
        if sign == "-":
            return Node("negative", (exponent,))
        return exponent

    def _read_operand(self) -> Node:
        token = self.token
        if token is None:
            raise Unreadable("nothing where a number should be")
        if token.kind in ("open", "bar"):
            return self._read_brackets()
        self._at += 1
        if token.kind == "number":
            return self._read_number(token.text)
        if token.kind == "repeating":
            return read_repeating(token.text)
        if token.kind == "name":
            return self._read_letter(token.text)
        if token.kind == "function":
            return self._read_function(token.text)
        return self._read_command(token.text)

    def _read_letter(self, letter: str) -> Node:
        primes = self._read_primes()
        name = letter + self._read_subscript() + (primes or self._read_primes())
        # y(0) is a value of y, and no product with 0.
        if self._take_all("(", "0", ")"):
            name = f"{name}(0)"
        return Node("letter", letter=name)

    def _read_command(self, text: str) -> Node:
        if text == r"\pi":
            return Node("pi")
        if text == r"\infty":
            return Node("infinity")
        if text in _TWO_ARGUMENTS:
            first = self._read_argument(single=True)
            second = self._read_argument(single=True)
            return Node(_TWO_ARGUMENTS[text], (first, second))
        if text == r"\sqrt":
            index = self._read_root_index()
            return Node("root", (self._read_argument(single=True), index))
        if text in _COMPLEX:
            inside = self._read_argument()
            if {node.letter for node in inside.walk()} - {"", "e"} != {"i"}:
                raise Unreadable("a part of a number that may be real, a segment or a mean")
            return Node("function", (inside,), letter=_COMPLEX[text])
        if text in _ROOTS:
            inside = self._read_argument()
            return Node("root", (inside, integer(_ROOTS[text])))
        raise Unreadable(text)

    def _read_root_index(self) -> Node:
        if not self._take("["):
            return integer(2)
        index = self._read_sum()
        if not self._take("]"):
            raise Unreadable("an open index")
        return index

    def _read_brackets(self) -> Node:
        opener = self._take(*_CLOSERS)
        if opener is None:
            raise Unreadable("an unknown bracket")
        bars = self._open_bars
        self._open_bars = bars + 1 if opener == "|" else 0
        inside = self.read_infix() if opener == "{" else self._read_sum()
        if not self._take(*_CLOSERS[opener]):
            raise Unreadable("an open bracket")
        self._open_bars = bars
        if opener in _KINDS_OF_BRACKETS:
            return Node(_KINDS_OF_BRACKETS[opener], (inside,))
        if inside.kind == "fraction":
            return Node("grouped", (inside,))
        return inside

    def _read_argument(self, *, single: bool = False) -> Node:
        token = self.token
        if token is None:
            raise Unreadable("a command without its argument")
        if token.kind == "open":
            return self._read_brackets()
        if token.kind == "number" and single:
            return self._read_digit(token)
        self._at += 1
        if token.kind == "number":
            return self._read_number(token.text)
        if token.kind == "name":
            return Node("letter", letter=token.text)
        is_nested = token.text in _TWO_ARGUMENTS and not single
        if is_nested or token.text in (r"\pi", r"\infty"):
            return self._read_command(token.text)
        raise Unreadable(token.text)

    def _read_digit(self, token: Token) -> Node:
        if not token.text.isdigit():
            raise Unreadable(f"a command before {token.text}")
        if len(token.text) > 1:
            self._tokens[self._at] = token._replace(text=token.text[1:])
            self._remainder_at = self._at
        else:
            self._at += 1
        return integer(int(token.text[0]))

    def _read_number(self, text: str) -> Node:
        plain = text.replace(",", "")
        if len(plain) > _MAX_DIGITS:
            raise Unreadable("a number of more than a thousand digits")
        if self._take("_"):
            return self._read_numeral(plain)
        if plain.isdigit():
            return integer(int(plain))
        mantissa, _, exponent = plain.partition("e")
        places = len(mantissa.partition(".")[2]) - int(exponent or 0)
        number = Fraction(plain.rstrip("."))
        return Node("number", number=number, places=max(0, places))

    def _read_numeral(self, digits: str) -> Node:
        node = self._read_argument()
        base = int(node.number) if node.kind == "number" and node.number in range(2, 11) else 0
        if not digits.isdigit() or any(int(digit) >= base for digit in digits):
            raise Unreadable("no numeral")
        return Node("numeral", (integer(int(digits, base)),))

    def _read_primes(self) -> str:
        primes = ""
        while self._take("'", "’", "′"):
            primes += "'"
        return primes

    def _read_subscript(self) -> str:
        if not self._take("_"):
            return ""
        start = self._at
        depth = 0
        while token := self.token:
            self._at += 1
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0:
                break
        if depth or start == self._at:
            raise Unreadable("an open subscript")
        index = "".join(token.text for token in self._tokens[start : self._at])
        return "_" + index.strip("{}")

    def _read_function(self, name: str) -> Node:
        has_base = name == "log" and self._take("_")
        base = (self._read_argument(single=True),) if has_base else ()
        power = self._read_exponent() if self._take("^") else None
        if power is not None and not (power.kind == "number" and power.number > 0):
            raise Unreadable("an inverse function, or a reciprocal")
        self._go_deeper()
        argument = self._read_function_argument()
        value = Node("function", (argument, *base), letter=name)
        self._depth -= 1
        if power is None:
            return value
        return Node("^", (value, power))

    def _read_function_argument(self) -> Node:
        if self._is_next("(", "["):
            inside = self._read_brackets()
            if self._is_next("^", "!"):
                raise Unreadable("a power of a function, or of its argument")
            return inside
        factors = [self._read_factor()]
        while self.token is not None and self.token.kind != "function":
            if self.token.kind == "number":
                raise Unreadable("a number after the argument of a function")
            if self._is_argument_over(factors) or not self._is_factor_next(factors[-1]):
                break
            factors.append(self._read_factor())
        if self._is_next("/") and not self._is_argument_over(factors):
            raise Unreadable("a slash after a function without brackets")
        return multiply(factors)

    def _is_argument_over(self, factors: list[Node]) -> bool:
        r"""Return whether a bracket or slash follows the function: ``\cos 10^\circ (1 + x)``."""
        if not self._is_next("(", "[", "/"):
            return False
        is_slash = self._is_next("/")
        is_bare = self._as_answer and len(factors) == 1
        if is_bare and factors[0].kind in {"number", "letter", "pi"}:
            return True
        if not is_slash and factors[-1].kind not in {"degree", "fraction"}:
            raise Unreadable("a bracket after the argument of a function")
        return not is_slash
