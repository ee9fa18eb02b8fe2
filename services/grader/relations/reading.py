r"""The tokens of a side as a tree, by a strict grammar: what is not in it is refused.

Where mathematicians would disagree (``1/2\pi``, ``1\frac{1}{2}``, ``50\%``, ``\sin 30``) the tree
says so, and `values` tries every reading. Nothing is computed here, and nothing is executed.
"""

from __future__ import annotations

from fractions import Fraction

from services.grader.relations.nodes import Node, Unreadable, integer, numeral, repeating, times
from services.grader.relations.tokens import STAR, Token

MAX_DEPTH = 30
_MAX_DIGITS = 400
_POSTFIX = {"!": "factorial", "!!": "double_factorial", "%": "percent", "°": "degree"}
_ROUNDINGS = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceiling")}
_OF_A_FUNCTION = frozenset("fghFGHPQRTp")  # before a bracket these are rarely factors


def read(side: tuple[Token, ...], *, number_may_follow: bool = False) -> Node:
    """The tree of a side; in an answer a number may be a factor behind another one.

    Raises:
        Unreadable: if the side is not in the grammar.
    """
    reader = _Reader(list(side), number_may_follow=number_may_follow)
    tree = reader.sum()
    if reader.token is not None:
        raise Unreadable(reader.token.text)
    return tree


class _Reader:
    """Recursive descent, at most `MAX_DEPTH` brackets and functions deep."""

    def __init__(self, side: list[Token], *, number_may_follow: bool) -> None:
        self._tokens = side
        self._number_may_follow = number_may_follow
        self._rest_at = -1  # of a number of which a command took the first digit
        self._at = 0
        self._depth = 0

    @property
    def token(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def takes(self, *texts: str) -> str | None:
        token = self.token
        if token is None or token.text not in texts:
            return None
        self._at += 1
        return token.text

    def takes_all(self, *texts: str) -> bool:
        """Whether all of them come next; then they are taken."""
        end = self._at + len(texts)
        found = texts == tuple(token.text for token in self._tokens[self._at : end])
        self._at = end if found else self._at
        return found

    def need(self, *texts: str) -> None:
        if self.takes(*texts) is None:
            raise Unreadable(f"no {texts}")

    def _go_deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")

    def sum(self) -> Node:
        self._go_deeper()
        total = self.signed()
        while sign := self.takes("+", "-"):
            total = Node(sign, (total, self.signed()))
        self._depth -= 1
        return total

    def signed(self) -> Node:
        if sign := self.takes("+", "-"):
            return Node("negative", (self.product(),)) if sign == "-" else self.product()
        return self.product()

    def product(self) -> Node:
        total = times(self.factors())
        while operator := self.takes("*", STAR, "/"):
            sign = self.takes("+", "-")
            factors = self.factors()
            if operator != "/":
                total = Node("*", (total, times(factors)))
            elif len(factors) == 1:
                total = Node("/", (total, factors[0]))
            else:
                total = Node("slash", (total, factors[0], times(factors[1:])))
            total = Node("negative", (total,)) if sign == "-" else total
        return total

    def factors(self) -> list[Node]:
        """At least one factor, and those that follow without an operator."""
        found = [self.factor()]
        while self._another_follows(found[-1]):
            found.append(self.factor())
        return found

    def _another_follows(self, last: Node) -> bool:
        token = self.token
        if token is None or token.kind in {"close", "operator"}:
            return token is not None and token.text == "√"
        if token.kind == "number" and last.kind != "factorial" and not self._is_factor(last):
            raise Unreadable("a number behind another factor")
        if token.text == "(" and (
            (last.kind == "letter" and last.letter in _OF_A_FUNCTION)
            or (token.gap and not token.in_math)
        ):
            raise Unreadable("perhaps the argument of a function, perhaps a remark")
        return True

    def _is_factor(self, last: Node) -> bool:
        r"""Whether the number that comes is one, as in ``n2^n``; ``x2`` may be ``x_2``.

        It is if it is raised and stands behind a bracket, a brace, a letter or an exponent of one
        digit; and behind a bracket or a brace that holds letters.
        """
        if not self._number_may_follow or self._at == self._rest_at:
            return False
        before, token = self._tokens[self._at - 1 : self._at + 1]
        is_closed = before.kind == "close" and last.kind != "numeral"
        if self._at + 1 < len(self._tokens) and self._tokens[self._at + 1].text == "^":
            is_digit = token.gap and len(before.text) == 1 and last.kind == "^"
            return is_closed or before.kind == "name" or before.text == r"\pi" or is_digit
        return is_closed and any(node.kind == "letter" for node in last.walk())

    def factor(self) -> Node:
        node, is_raised = self.operand(), False
        while token := self.token:
            if token.text in _POSTFIX:
                if token.text == "!" == self._tokens[self._at - 1].text:
                    raise Unreadable("a double factorial")
                self._at += 1
                if token.text == "%" and node.kind != "number":
                    raise Unreadable("per cent of what is no number")
                node = Node(_POSTFIX[token.text], (node,))
            elif token.text == "^":
                if is_raised:
                    raise Unreadable("a power of a power without brackets")
                self._at += 1
                node, is_raised = self.raised(node), True
            else:
                break
        return node

    def raised(self, base: Node) -> Node:
        if self.takes("°") or self.takes_all("{", "°", "}"):
            return Node("degree", (base,))
        return Node("^", (base, self.exponent()))

    def exponent(self) -> Node:
        sign = self.takes("-", "+")
        exponent = self.argument()
        return Node("negative", (exponent,)) if sign == "-" else exponent

    def operand(self) -> Node:
        token = self.token
        if token is None:
            raise Unreadable("nothing where a number should be")
        if token.kind == "open":
            return self.bracketed()
        self._at += 1
        if token.kind == "number":
            return self.number(token.text)
        if token.kind == "repeating":
            return repeating(token.text)
        if token.kind == "name":
            name = token.text + self.subscript()  # y(0) is a value of y, and no product with 0
            return Node("letter", letter=f"{name}(0)" if self.takes_all("(", "0", ")") else name)
        if token.kind == "function":
            return self.called(token.text)
        return self.command(token.text)

    def command(self, text: str) -> Node:
        match text:
            case r"\pi":
                return Node("pi")
            case r"\frac":
                return Node("fraction", (self.argument(single=True), self.argument(single=True)))
            case r"\binom":
                return Node("binomial", (self.argument(single=True), self.argument(single=True)))
            case r"\sqrt":
                index = self.index()
                return Node("root", (self.argument(single=True), index))
            case "√":
                return Node("root", (self.argument(), integer(2)))
        raise Unreadable(text)

    def index(self) -> Node:
        if not self.takes("["):
            return integer(2)
        index = self.sum()
        self.need("]")
        return index

    def bracketed(self) -> Node:
        opener = self.takes("(", "[", "{", "|", *_ROUNDINGS)
        if opener is None:
            raise Unreadable("an unknown bracket")
        inside = self.sum()
        if opener in _ROUNDINGS:
            closer, kind = _ROUNDINGS[opener]
            self.need(closer)
            return Node(kind, (inside,))
        self.need(*{"(": ")]", "[": "])", "{": "}", "|": "|"}[opener])
        if opener == "|":
            return Node("absolute", (inside,))
        return Node("grouped", (inside,)) if inside.kind == "fraction" else inside

    def argument(self, *, single: bool = False) -> Node:
        """A group, a letter, or a number, of which TeX takes the first digit (``single``)."""
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
        if token.text == r"\pi" or (token.text == r"\frac" and not single):
            return self.command(token.text)
        raise Unreadable(token.text)

    def digit(self, token: Token) -> Node:
        rest = token.text[1:]
        if rest and not rest.isdigit():
            raise Unreadable(f"a command before {token.text}")
        if rest:
            self._tokens[self._at] = token._replace(text=rest)
            self._rest_at = self._at
        else:
            self._at += 1
        return integer(int(token.text[0]))

    def number(self, plain: str) -> Node:
        if len(plain) > _MAX_DIGITS:
            raise Unreadable("a number of more than 400 digits")
        if self.takes("_"):
            return numeral(plain, self.base())
        places = len(plain.partition(".")[2])
        return Node("number", number=Fraction(plain), places=places)

    def base(self) -> int:
        node = self.argument()
        if node.kind != "number" or node.number not in range(2, 11):
            raise Unreadable("a subscript that is no base")
        return int(node.number)

    def subscript(self) -> str:
        """The subscript of a letter, as text."""
        if not self.takes("_"):
            return ""
        start = self._at
        self.argument()
        return "_" + "".join(token.text for token in self._tokens[start : self._at])

    def called(self, name: str) -> Node:
        parts: tuple[Node, ...] = ()
        if name == "log" and self.takes("_"):
            parts = (self.argument(single=True),)
        power = self.exponent() if self.takes("^") else None
        if power is not None and not (power.kind == "number" and power.number > 0):
            raise Unreadable("an inverse function, or a reciprocal")
        self._go_deeper()
        called = Node("function", (self.of_function(), *parts), letter=name)
        self._depth -= 1
        return called if power is None else Node("^", (called, power))

    def _is_beside(self, argument: Node) -> bool:
        r"""Whether a bracket is a factor, as in ``\cos 10^\circ (1 + x)``, and no argument."""
        if self.token is None or self.token.text not in {"(", "["}:
            return False
        if argument.kind not in {"degree", "fraction"}:
            raise Unreadable("a bracket behind the argument of a function")
        return True

    def of_function(self) -> Node:
        r"""The argument: a bracket, or the factors behind, as in ``\sin 2x``."""
        token = self.token
        if token is not None and token.text in {"(", "["}:
            inside = self.bracketed()
            if self.token is not None and self.token.text in {"^", "!", "(", "["}:
                raise Unreadable("a power of a function, or of its argument")
            return inside
        factors = [self.factor()]
        while self.token is not None and self.token.kind != "function":
            if self.token.kind == "number" and factors[-1].kind != "factorial":
                raise Unreadable("a number behind the argument of a function")
            if not self._another_follows(factors[-1]) or self._is_beside(factors[-1]):
                break
            factors.append(self.factor())
        if self.token is not None and self.token.text == "/":
            raise Unreadable("a slash behind a function without brackets")
        return times(factors)
