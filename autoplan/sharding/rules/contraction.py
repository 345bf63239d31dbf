"""Matrix products: sums over a shared letter."""

from __future__ import annotations

from autoplan.sharding.equation import Equation, equation
from autoplan.sharding.rules.base import Call


def _linear(call: Call) -> Equation:
    if len(call.inputs) == 3:
        text, additive = "... k, n k, n -> ... n", (2,)
    else:
        text, additive = "... k, n k -> ... n", ()
    return equation(text, call.shapes, call.output_shapes, additive=additive)


def _addmm(call: Call) -> Equation:
    bias = "m n" if len(call.shapes[0]) == 2 else "n"
    return equation(f"{bias}, m k, k n -> m n", call.shapes, call.output_shapes, additive=(0,))


def _baddbmm(call: Call) -> Equation:
    bias = " ".join("bmn"[3 - len(call.shapes[0]) :])
    return equation(
        f"{bias}, b m k, b k n -> b m n", call.shapes, call.output_shapes, additive=(0,)
    )


def _matmul(call: Call) -> Equation:
    left, right = (len(shape) for shape in call.shapes)
    first = "k" if left == 1 else "... m k"
    second = "k" if right == 1 else "... k n"
    rows = "m" if left > 1 else ""
    columns = "n" if right > 1 else ""
    lead = "..." if max(left, right) > 2 else ""
    if not lead:
        first, second = first.replace("... ", ""), second.replace("... ", "")
    return equation(
        f"{first}, {second} -> {lead} {rows} {columns}", call.shapes, call.output_shapes
    )


def _einsum(call: Call) -> Equation | None:
    """A repeated letter within one operand takes a diagonal, and is no loop."""
    text = call.argument(0, "equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    if not arrow:
        once = (letter for letter in sorted(set(left) - {",", "."}) if left.count(letter) == 1)
        right = ("..." if "..." in left else "") + "".join(once)
    terms = [_spaced(term) for term in (*left.split(","), right)]
    if any(len(set(term)) < len(term) for term in terms):
        return None
    written = [" ".join(term) for term in terms]
    text = f"{', '.join(written[:-1])} -> {written[-1]}"
    return equation(text, call.shapes, call.output_shapes)


def _spaced(term: str) -> list[str]:
    before, dots, after = term.partition("...")
    return [*before, *([dots] if dots else []), *after]


def _mm(call: Call) -> Equation:
    return equation("m k, k n -> m n", call.shapes, call.output_shapes)


def _bmm(call: Call) -> Equation:
    return equation("b m k, b k n -> b m n", call.shapes, call.output_shapes)


def _bilinear(call: Call) -> Equation:
    additive = (3,) if len(call.inputs) == 4 else ()
    text = f"... i, ... j, n i j{', n' if additive else ''} -> ... n"
    return equation(text, call.shapes, call.output_shapes, additive=additive)


def _mv(call: Call) -> Equation:
    return equation("m k, k -> m", call.shapes, call.output_shapes)


def _addmv(call: Call) -> Equation:
    return equation("m, m k, k -> m", call.shapes, call.output_shapes, additive=(0,))


def _outer(call: Call) -> Equation:
    return equation("m, n -> m n", call.shapes, call.output_shapes)


def _cdist(call: Call) -> Equation:
    """Distances are no sums of those along single dims of the points."""
    return equation("... m k, ... n k -> ... m n", call.shapes, call.output_shapes, whole="k")


RULES = {
    "aten.linear.default": _linear,
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _baddbmm,
    "aten.matmul.default": _matmul,
    "aten.einsum.default": _einsum,
    "aten.mm.default": _mm,
    "aten.bmm.default": _bmm,
    "aten.bilinear.default": _bilinear,
    "aten.mv.default": _mv,
    "aten.addmv.default": _addmv,
    "aten.outer.default": _outer,
    "aten.cdist.default": _cdist,
}
