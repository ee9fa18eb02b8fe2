r"""One expression as a tree, by a strict grammar: what is not in it is refused.

Where mathematicians would disagree (``1/2\pi``, ``1\frac{1}{2}``, ``50\%``) the tree says so.
Nothing is computed here, and nothing is executed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from answers.nodes import Node, Unreadable, integer, repeating, times
from answers.tokens import Token, tokens

MAX_DEPTH = 30
_MAX_TOKENS = 2_000
_MAX_DIGITS = 1_200
_MAX_LETTERS = 3  # of a product without a sign; more are a word
_POSTFIX = {"!": "factorial", "%": "percent", "°": "degree"}
_ROUNDINGS = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceiling")}
_CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "{": ("}",), "|": ("|",)}
_OF_A_FUNCTION = frozenset("fghFGHPQRTp")  # before a bracket these are rarely factors
_TWO_ARGUMENTS = {r"\frac": "fraction", r"\binom": "binomial"}
_COMPLEX = {r"\Re": "re", r"\Im": "im", r"\overline": "conjugate"}
_TIMES = ("*", r"\times")
_BETWEEN = {r"\over": "fraction", r"\choose": "binomial"}


def read_expression(text: str, *, as_answer: bool = False) -> Node:
    r"""The tree of all of a text; `Unreadable` if it is not in the grammar.

    In an answer alone a number may be a factor behind another one, as in ``n2^n``, and ``\ln 2/3``
    is a third of ``\ln 2``.
    """
    return tree_of(tokens(text) if len(text) <= 10 * _MAX_TOKENS else [], as_answer=as_answer)


def tree_of(side: Iterable[Token], *, as_answer: bool = False) -> Node:
    found = _factors_apart(list(side))
    if not 0 < len(found) <= _MAX_TOKENS:
        raise Unreadable("nothing, or a very long expression")
    reader = _Reader(found, as_answer=as_answer)
    tree = reader.whole()
    if reader.token is not None:
        raise Unreadable(reader.token.text)
    return tree


def _factors_apart(side: list[Token]) -> list[Token]:
    """With each letter for itself, and ``x`` between two numbers for their product."""
    apart = list[Token]()
    for at, token in enumerate(side):
        if token.kind == "roman" or token.kind == "accent":
            apart.append(token._replace(kind="name"))
        elif token.kind != "letters":
            apart.append(token)
        elif token.text in "xX" and _is_sign_of_times(side, at):
            apart.append(token._replace(kind="operator", text="*"))
        elif len(token.text) > _MAX_LETTERS or not token.text.isalpha():
            raise Unreadable(f"the word {token.text}")
        else:
            apart += (token._replace(kind="name", text=letter) for letter in token.text)
    return apart


def _is_sign_of_times(side: list[Token], at: int) -> bool:
    numbers = 0 < at < len(side) - 1 and side[at - 1].kind == side[at + 1].kind == "number"
    return numbers and side[at].gap == side[at + 1].gap


class _Reader:
    def __init__(self, side: list[Token], *, as_answer: bool) -> None:
        self._tokens = side
        self._as_answer = as_answer
        self._rest_at = -1  # of a number of which a command took the first digit
        self._at = 0
        self._depth = 0
        self._bars = 0  # open ones

    @property
    def token(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def takes(self, *texts: str) -> str | None:
        token = self.token
        if token is None or token.text not in texts or token.kind == "words":
            return None
        self._at += 1
        return token.text

    def takes_all(self, *texts: str) -> bool:
        end = self._at + len(texts)
        found = texts == tuple(token.text for token in self._tokens[self._at : end])
        self._at = end if found else self._at
        return found

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")

    def whole(self) -> Node:
        tree = self.sum()
        between = self.takes(*_BETWEEN)
        return Node(_BETWEEN[between], (tree, self.sum())) if between else tree

    def sum(self) -> Node:
        self._go_deeper()
        total = self.signed()
        while sign := self.takes("+", "-", r"\pm", r"\mp"):
            kind, letter = (sign, "") if sign in "+-" else ("plusminus", sign)
            total = Node(kind, (total, self.signed()), letter=letter)
        self._depth -= 1
        return total

    def signed(self) -> Node:
        sign = self.takes("+", "-", r"\pm", r"\mp")
        if sign == "-":
            return Node("negative", (self.product(),))
        if sign in (r"\pm", r"\mp"):
            return Node("plusminus", (integer(0), self.product()), letter=sign)
        return self.product()

    def product(self) -> Node:
        total = times(self.factors())
        while operator := self.takes(*_TIMES, "/"):
            sign = self.takes("+", "-")
            factors = self.factors()
            if operator == r"\times" and any(r"\vec" in n.letter for n in total.walk()):
                raise Unreadable("a product of vectors, whose order matters")
            if operator != "/":
                total = Node("*", (total, times(factors)))
            elif len(factors) == 1:
                total = Node("/", (total, factors[0]))
            else:
                total = Node("slash", (total, factors[0], times(factors[1:])))
            total = Node("negative", (total,)) if sign == "-" else total
        return total

    def factors(self) -> list[Node]:
        found = [self.factor()]
        while self._another_follows(found[-1]):
            found.append(self.factor())
        return found

    def _another_follows(self, last: Node) -> bool:
        token = self.token
        if token is None or token.kind in {"close", "operator"} or token.text in _BETWEEN:
            return token is not None and token.text in ("√", "∛")
        if token.kind == "bar" and self._bars:
            return False
        if token.kind == "number" and not self._is_factor(last):
            raise Unreadable("a number behind another factor")
        if token.text == "(" and self._is_call(last):
            raise Unreadable("perhaps the argument of a function")
        return True

    def _is_call(self, last: Node) -> bool:
        """Whether what a bracket holds is an argument: ``g(x + 1)``, but not ``g(M - m)``."""
        is_in_brackets = self._tokens[self._at - 1].kind == "close"
        if is_in_brackets or not (last.letter in _OF_A_FUNCTION or "'" in last.letter):
            return False
        inside, depth = set[str](), 0
        for at, token in enumerate(self._tokens[self._at :], start=self._at):
            depth += (token.kind == "open") - (token.kind == "close")
            if depth == 0:
                break
            if token.kind == "name":
                mark = [each.text for each in self._tokens[at + 1 : at + 4]]
                inside.add(token.text + "".join(mark if mark[:1] == ["_"] else ()))
        is_weight = [each.text for each in self._tokens[self._at - 2 : self._at]] == ["m", "g"]
        return not is_weight and len(inside) < 2 and last.letter not in inside

    def _is_factor(self, last: Node) -> bool:
        """Whether the number that comes is one, as in ``n2^n``; ``x2`` may be ``x_2``."""
        if not self._as_answer or self._at == self._rest_at:
            return False
        before, token = self._tokens[self._at - 1 : self._at + 1]
        if before.text == "!":
            return True
        is_closed = before.kind == "close" and last.kind != "numeral"
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].text == "^":
            is_digit = token.gap and len(before.text) == 1 and last.kind == "^"
            return is_closed or before.kind == "name" or before.text == r"\pi" or is_digit
        return is_closed and any(node.kind == "letter" for node in last.walk())

    def factor(self) -> Node:
        node, is_raised = self.operand(), False
        while token := self.token:
            if token.kind == "operator" and token.text in _POSTFIX:
                node = self.postfix(node)
            elif token.text == "^":
                if is_raised:
                    raise Unreadable("a power of a power without brackets")
                self._at += 1
                node, is_raised = Node("^", (node, self.exponent())), True
            else:
                break
        return node

    def postfix(self, node: Node) -> Node:
        if self.takes_all("!", "!"):
            kind = "double_factorial"
        else:
            kind = _POSTFIX[self._tokens[self._at].text]
            self._at += 1
        if kind == "percent" and node.kind != "number":
            raise Unreadable("per cent of what is no number")
        if "factorial" in kind and self.token is not None and self.token.text == "!":
            raise Unreadable("a factorial of factorials without brackets")
        return Node(kind, (node,))

    def exponent(self) -> Node:
        sign = self.takes("-", "+")
        exponent = self.argument()
        return Node("negative", (exponent,)) if sign == "-" else exponent

    def operand(self) -> Node:
        token = self.token
        if token is None:
            raise Unreadable("nothing where a number should be")
        if token.kind in ("open", "bar"):
            return self.bracketed()
        self._at += 1
        if token.kind == "number":
            return self.number(token.text)
        if token.kind == "repeating":
            return repeating(token.text)
        if token.kind == "name":
            primes = self.primes()
            index = self.subscript()
            name = f"{token.text}{index}{primes or self.primes()}"
            # y(0) is a value of y, and no product with 0
            return Node("letter", letter=f"{name}(0)" if self.takes_all("(", "0", ")") else name)
        if token.kind == "function":
            return self.called(token.text)
        return self.command(token.text)

    def command(self, text: str) -> Node:
        if text in (r"\pi", r"\infty"):
            return Node({r"\pi": "pi"}.get(text, "infinity"))
        if text in _TWO_ARGUMENTS:
            parts = self.argument(single=True), self.argument(single=True)
            return Node(_TWO_ARGUMENTS[text], parts)
        if text == r"\sqrt":
            index = self.sum() if (is_open := self.takes("[")) else integer(2)
            if is_open and not self.takes("]"):
                raise Unreadable("an open index")
            return Node("root", (self.argument(single=True), index))
        if text in _COMPLEX:
            inside = self.argument()
            if {node.letter for node in inside.walk()} - {"", "e"} != {"i"}:
                raise Unreadable("a part of what may be real, a segment or a mean")
            return Node("function", (inside,), letter=_COMPLEX[text])
        if text in ("√", "∛"):
            return Node("root", (self.argument(), integer(2 if text == "√" else 3)))
        raise Unreadable(text)

    def bracketed(self) -> Node:
        opener = self.takes(*_CLOSERS, *_ROUNDINGS)
        if opener is None:
            raise Unreadable("an unknown bracket")
        self._bars, bars = self._bars + 1 if opener == "|" else 0, self._bars
        inside = self.whole() if opener == "{" else self.sum()
        closers, kind = _ROUNDINGS.get(opener, (_CLOSERS.get(opener), "absolute"))
        if not self.takes(*([closers] if isinstance(closers, str) else closers or ())):
            raise Unreadable("an open bracket")
        self._bars = bars
        if opener in _ROUNDINGS or opener == "|":
            return Node(kind, (inside,))
        return Node("grouped", (inside,)) if inside.kind == "fraction" else inside

    def argument(self, *, single: bool = False) -> Node:
        token = self.token
        if token is None:
            raise Unreadable("a command without its argument")
        if token.kind == "open":
            return self.bracketed()
        if token.kind == "number" and single:
            return self.digit(token)
        self._at += 1
        if token.kind == "number":
            return self.number(token.text)
        if token.kind == "name":
            return Node("letter", letter=token.text)
        if token.text in (r"\pi", r"\infty") or (token.text in _TWO_ARGUMENTS and not single):
            return self.command(token.text)
        raise Unreadable(token.text)

    def digit(self, token: Token) -> Node:
        if not token.text.isdigit():
            raise Unreadable(f"a command before {token.text}")
        if rest := token.text[1:]:
            self._tokens[self._at] = token._replace(text=rest)
            self._rest_at = self._at
        else:
            self._at += 1
        return integer(int(token.text[0]))

    def number(self, written: str) -> Node:
        plain = written.replace(",", "")
        if len(plain) > _MAX_DIGITS:
            raise Unreadable("a number of more than a thousand digits")
        if self.takes("_"):
            return self.numeral(plain)
        if plain.isdigit():
            return Node("number", number=Fraction(int(plain)))
        mantissa, _, exponent = plain.partition("e")
        places = len(mantissa.partition(".")[2]) - int(exponent or 0)
        return Node("number", number=Fraction(plain.rstrip(".")), places=max(0, places))

    def numeral(self, digits: str) -> Node:
        node = self.argument()
        base = int(node.number) if node.kind == "number" and node.number in range(2, 11) else 0
        if not digits.isdigit() or any(int(digit) >= base for digit in digits):
            raise Unreadable("no numeral")
        return Node("numeral", (integer(int(digits, base)),))

    def primes(self) -> str:
        primes = ""
        while self.takes("'", "’", "′"):
            primes += "'"
        return primes

    def subscript(self) -> str:
        if not self.takes("_"):
            return ""
        start, depth = self._at, 0
        while token := self.token:
            self._at += 1
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0:
                break
        if depth or start == self._at:
            raise Unreadable("an open subscript")
        return "_" + "".join(token.text for token in self._tokens[start : self._at]).strip("{}")

    def called(self, name: str) -> Node:
        base: tuple[Node, ...] = ()
        if name == "log" and self.takes("_"):
            base = (self.argument(single=True),)
        power = self.exponent() if self.takes("^") else None
        if power is not None and not (power.kind == "number" and power.number > 0):
            raise Unreadable("an inverse function, or a reciprocal")
        self._go_deeper()
        called = Node("function", (self.of_function(), *base), letter=name)
        self._depth -= 1
        return called if power is None else Node("^", (called, power))

    def of_function(self) -> Node:
        token = self.token
        if token is not None and token.text in {"(", "["}:
            inside = self.bracketed()
            if self.token is not None and self.token.text in {"^", "!"}:
                raise Unreadable("a power of a function, or of its argument")
            return inside
        factors = [self.factor()]
        while self.token is not None and self.token.kind != "function":
            if self.token.kind == "number":
                raise Unreadable("a number behind the argument of a function")
            if self._argument_ends(factors) or not self._another_follows(factors[-1]):
                break
            factors.append(self.factor())
        if self.token is not None and self.token.text == "/" and not self._argument_ends(factors):
            raise Unreadable("a slash behind a function without brackets")
        return times(factors)

    def _argument_ends(self, factors: list[Node]) -> bool:
        r"""Whether a bracket or a slash is beside the function: ``\cos 10^\circ (1 + x)``."""
        if self.token is None or self.token.text not in {"(", "[", "/"}:
            return False
        is_bare = self._as_answer and len(factors) == 1
        if is_bare and factors[0].kind in {"number", "letter", "pi"}:
            return True
        if self.token.text != "/" and factors[-1].kind not in {"degree", "fraction"}:
            raise Unreadable("a bracket behind the argument of a function")
        return self.token.text != "/"
