"""Keeps the inside of repeated blocks out of an export; puts the parameters back into its result.

The time of ``torch.export`` follows the number of parameters that it lifts to inputs, and of the
modules that it looks through, not the number of operators; a block that stands for an earlier one
needs none of its own. So they are withheld from all members of a group but the last, which is
traced, and the first two, since the first is often fed otherwise than the rest. A forward that
reads a withheld parameter or part after all, from inside the block or from anywhere else, is
noticed: the group is given up here, and exported again with all it has. Parts that hold buffers, or
that some module holds in a plain attribute, are left in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from autoplan.trace.hidden import HIDDEN
from autoplan.trace.repeat_errors import WithheldError
from autoplan.trace.repeat_groups import Group, own_attributes
from autoplan.trace.repeat_ops import BLOCK
from autoplan.trace.torch_private import fake_like

_INNER = slice(2, -1)
_DEPTH = 4


@dataclass(slots=True)
class _Forward:
    """Whether the program's forward runs, and the group of which it read a withheld parameter."""

    running: bool = False
    group: str | None = None

    def read(self, group: str) -> NoReturn:
        """Gives a group up; remembered, since the forward may catch the error."""
        self.group = group
        raise WithheldError(group)


def _noticed(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def noticing(withheld: _Withheld, *args: Any, **kwargs: Any) -> Any:
        withheld.notice()
        return method(withheld, *args, **kwargs)

    return noticing


class _Withheld(dict[str, Any]):
    """``_parameters`` or ``_modules`` of a module without them: empty, not to be used in forward.

    Other attributes are looked up here first, so asking for other names is nothing special.
    """

    def __init__(self, group: str, names: Iterable[str], forward: _Forward):
        super().__init__()
        self._group = group
        self._names = frozenset(names)
        self._forward = forward

    def notice(self) -> None:
        if self._forward.running:
            self._forward.read(self._group)

    def __contains__(self, name: object) -> bool:
        if name in self._names:
            self.notice()
        return False

    __getitem__ = _noticed(dict.__getitem__)
    __setitem__ = _noticed(dict.__setitem__)
    __delitem__ = _noticed(dict.__delitem__)
    __iter__ = _noticed(dict.__iter__)
    __len__ = _noticed(dict.__len__)
    copy = _noticed(dict.copy)
    get = _noticed(dict.get)
    items = _noticed(dict.items)
    keys = _noticed(dict.keys)
    pop = _noticed(dict.pop)
    setdefault = _noticed(dict.setdefault)
    update = _noticed(dict.update)
    values = _noticed(dict.values)


@dataclass(frozen=True, slots=True)
class _Member:
    """A block, and its parameters by their names in the program, in the order of the module.

    Attributes:
        parts: itself and its parts by relative path, where these are withheld too; else empty.
    """

    group: str
    module: nn.Module
    parameters: Mapping[str, nn.Parameter]
    parts: Mapping[str, nn.Module]


class WithheldParameters:
    """The parameters of the inner members of groups, withheld while ``active``.

    Args:
        root: the program that is exported.
        groups: of its modules.
        given_up: names of groups whose members keep their parameters.
    """

    def __init__(self, root: nn.Module, groups: Iterable[Group], given_up: Collection[str]):
        self._root = root
        self._forward = _Forward()
        self._members: dict[str, _Member] = {}
        owners = Counter(id(part) for _, part in root.named_modules(remove_duplicate=False))
        uses = Counter(id(tensor) for _, tensor in root.named_parameters(remove_duplicate=False))
        held = {id(module) for module in _modules_in_attributes(root)}
        for group in groups:
            if group.name in given_up or not _stand_alone(group, owners, uses):
                continue
            for path, module in group.members[_INNER]:
                parameters = dict(module.named_parameters(prefix=path))
                parts = dict(module.named_modules()) if parameters else {}
                apart = not held.intersection(map(id, parts.values()))
                hidden = apart and not any(part._buffers for part in parts.values())
                self._members[path] = _Member(
                    group.name, module, parameters, parts if hidden else {}
                )

    def of(self, path: str) -> list[torch.Tensor]:
        """The withheld parameters of a block, in the order of the module; none of other blocks."""
        member = self._members.get(path)
        return list(member.parameters.values()) if member else []

    def parts_of(self, path: str) -> Mapping[str, nn.Module]:
        """A block and its parts by relative path, where these are withheld; else empty."""
        member = self._members.get(path)
        return member.parts if member else {}

    def need(self, path: str) -> None:
        """Gives the group of a block up if its parameters are withheld.

        Raises:
            WithheldError: they are.
        """
        if path in self._members:
            self._forward.read(self._members[path].group)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Withholds the parameters and the parts.

        Raises:
            WithheldError: on leaving, when the forward read one of them.
        """
        forward = self._root.forward

        @wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._forward.running = True
            try:
                return forward(*args, **kwargs)
            finally:
                self._forward.running = False

        kept = [(part, kind, group, vars(part)[kind]) for part, kind, group in self._withheld()]
        for part, kind, group, held in kept:
            setattr(part, kind, _Withheld(group, held, self._forward))
        self._root.forward = watched
        try:
            yield
        finally:
            self._root.forward = forward
            for part, kind, _, held in kept:
                setattr(part, kind, held)
            if self._forward.group is not None:
                raise WithheldError(self._forward.group)

    def _withheld(self) -> Iterator[tuple[nn.Module, str, str]]:
        """The modules that go without their parameters or parts, and the group that it is for."""
        for member in self._members.values():
            for part in member.module.modules():
                if part._parameters:
                    yield part, "_parameters", member.group
            if member.parts:
                yield member.module, "_modules", member.group

    def put_back(self, program: ExportedProgram) -> None:
        """Writes the exported program as if nothing had been withheld, when no longer ``active``.

        Placeholders stand in the order of the parameters in the model, as export leaves them.
        """
        if not self._members:
            return
        placeholders = self._placeholders(program)
        for node in program.graph.nodes:
            if node.target is BLOCK and node.args[1] in self._members:
                names = self._members[node.args[1]].parameters
                node.update_arg(3, [*(placeholders[name] for name in names), *node.args[3]])

    def _placeholders(self, program: ExportedProgram) -> dict[str, fx.Node]:
        """Inserts the missing placeholders and their specifications."""
        graph, specs = program.graph, program.graph_signature.input_specs
        nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        known = {spec.target: spec for spec in specs if spec.kind is InputKind.PARAMETER}
        names = {name for member in self._members.values() for name in member.parameters}
        inserted: dict[str, fx.Node] = {}
        ordered: list[InputSpec] = []
        following: fx.Node = next(iter(graph.nodes))
        mode = following.meta["val"].fake_mode
        for name, parameter in self._root.named_parameters(remove_duplicate=False):
            if name in known:
                following = nodes[known[name].arg.name].next
                ordered.append(known[name])
            elif name in names:
                with graph.inserting_before(following):
                    node = inserted[name] = graph.placeholder("parameter")
                node.meta["val"] = fake_like(parameter, mode, parameter.dtype)
                argument = TensorArgument(name=node.name)
                ordered.append(InputSpec(InputKind.PARAMETER, argument, name))
        specs[:] = [*ordered, *(spec for spec in specs if spec.kind is not InputKind.PARAMETER)]
        return inserted


def _modules_in_attributes(root: nn.Module) -> Iterator[nn.Module]:
    """The modules that some module of ``root`` holds in a plain attribute, or in a container."""
    for module in root.modules():
        hidden = vars(module).get(HIDDEN, {})
        for value in (*own_attributes(module).values(), *hidden.values()):
            yield from _modules_in(value, _DEPTH)


def _modules_in(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth and isinstance(value, (list, tuple, set, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _modules_in(item, depth - 1)


def _stand_alone(group: Group, owners: Mapping[int, int], uses: Mapping[int, int]) -> bool:
    """Whether no inner member shares a part or a parameter with anything."""
    inner: Sequence[nn.Module] = [module for _, module in group.members[_INNER]]
    return all(
        owners[id(part)] == 1
        and all(tensor is None or uses[id(tensor)] == 1 for tensor in part._parameters.values())
        for module in inner
        for part in module.modules()
    )
