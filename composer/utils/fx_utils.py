"""Changes to models that ``torch.fx`` has traced into a graph."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from composer.utils.iter_helpers import ensure_tuple

__all__ = [
    "BlockStochasticModule",
    "apply_stochastic_residual",
    "count_op_instances",
    "fuse_parallel_linears",
    "replace_op",
]

Op: TypeAlias = "Callable[..., Any] | str | type[nn.Module]"

_ADDITIONS: tuple[Op, ...] = (operator.add, operator.iadd, torch.add, "add", "add_")


def count_op_instances(gm: GraphModule, ops: Op | Sequence[Op]) -> int:
    """Counts the nodes that call one of the ops.

    Args:
        gm: A traced model.
        ops: Functions, names of tensor methods or classes of modules.
    """
    return len(_calls(gm, ops))


def replace_op(gm: GraphModule, src_ops: Op | Sequence[Op], tgt_op: Callable[..., Any]) -> Any:
    """Lets a function take the place of ops, with their arguments; changes and returns the model.

    Args:
        gm: A traced model.
        src_ops: Functions, names of tensor methods or classes of modules.
        tgt_op: The function.
    """
    for node in _calls(gm, src_ops):
        with gm.graph.inserting_after(node):
            called = gm.graph.call_function(tgt_op, node.args, node.kwargs)
        _take_place(node, called)
    return _rebuilt(gm)


def fuse_parallel_linears(gm: GraphModule, keep_weights: bool = False) -> GraphModule:
    """Makes one linear layer of those that read the same tensor, and splits its output.

    Layers are fused if all or none of them have a bias, and dtype and device agree. The model is
    changed and returned; its parameters are new, so make the optimizer afterwards.

    Args:
        gm: A traced model.
        keep_weights: Whether the fused layer computes what the layers did; otherwise it is
            initialised anew, as a linear layer is.
    """
    groups: dict[Any, list[Node]] = {}
    calls = Counter(node.target for node in gm.graph.nodes)
    for node in _calls(gm, nn.Linear):
        linear = _module(gm, node)
        # A layer that is called twice has to stay: the other call needs it.
        if calls[node.target] == len(node.args) == 1:
            weight = linear.weight
            kind = linear.bias is None, weight.dtype, weight.device, weight.requires_grad
            groups.setdefault((node.args, kind), []).append(node)
    for index, nodes in enumerate(group for group in groups.values() if len(group) > 1):
        _fuse(gm, nodes, f"fused_linear_{index}", keep_weights)
    return _rebuilt(gm)


def apply_stochastic_residual(gm: GraphModule, drop_rate: float = 0.2) -> tuple[GraphModule, int]:
    """Puts every residual block of a model into a `BlockStochasticModule`.

    A residual block is an addition of two branches that fork from one tensor and are used by
    nothing else; one of them may be that tensor itself. The longer branch is the one that is
    dropped at random.

    Args:
        gm: A traced model; it is changed.
        drop_rate: How often the main branch is dropped in training.

    Returns:
        The model, and how many blocks it has.

    Raises:
        ValueError: If the model is not a GraphModule, or the rate not in [0, 1].
    """
    if not isinstance(gm, GraphModule):
        raise ValueError(
            f"A torch.fx.GraphModule is needed, not a {type(gm).__name__}: trace the model with "
            "torch.fx.symbolic_trace first."
        )
    count = 0
    for addition in _calls(gm, _ADDITIONS):
        block = _residual_block(gm.graph, addition)
        if block is None:
            continue
        fork, main, residual = block
        name = f"stochastic_residual_{count}"
        shortcut = _branch(gm, fork, residual) if residual else None
        module = BlockStochasticModule(_branch(gm, fork, main), shortcut, drop_rate)
        gm.add_submodule(name, module.train(gm.training))
        with gm.graph.inserting_after(addition):
            called = gm.graph.call_module(name, (fork,))
        _take_place(addition, called)
        for node in (*reversed(main), *reversed(residual)):
            gm.graph.erase_node(node)
        count += 1
    return _rebuilt(gm), count


class BlockStochasticModule(nn.Module):
    """A residual block whose main branch is dropped at random in training.

    In evaluation it always runs, scaled by how often it ran in training.

    Args:
        main: The branch that may be dropped.
        residual: The other one; None adds the input itself.
        drop_rate: How often the main branch is dropped.

    Raises:
        ValueError: If the rate is not in [0, 1].
    """

    def __init__(
        self, main: nn.Module, residual: nn.Module | None = None, drop_rate: float = 0.2
    ) -> None:
        super().__init__()
        if not 0 <= drop_rate <= 1:
            raise ValueError(f"drop_rate={drop_rate} is not a rate: it must be in [0, 1].")
        self.drop_rate = drop_rate
        self.main = main
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the branches that run."""
        residual = x if self.residual is None else self.residual(x)
        if not self.training:
            return residual + (1 - self.drop_rate) * self.main(x)
        if torch.rand(()).item() < self.drop_rate:
            return residual
        return residual + self.main(x)


def _calls(gm: GraphModule, ops: Any) -> list[Node]:
    wanted = ensure_tuple(ops)
    kinds = tuple(op for op in wanted if isinstance(op, type) and issubclass(op, nn.Module))

    def is_wanted(node: Node) -> bool:
        if node.op == "call_module":
            return isinstance(_module(gm, node), kinds)
        return node.op in ("call_function", "call_method") and node.target in wanted

    return [node for node in gm.graph.nodes if is_wanted(node)]


def _module(gm: GraphModule, node: Node) -> Any:
    return gm.get_submodule(str(node.target))


def _take_place(old: Node, new: Node) -> None:
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def _rebuilt(gm: GraphModule) -> GraphModule:
    gm.delete_all_unused_submodules()
    gm.graph.lint()
    gm.recompile()
    return gm


def _fuse(gm: GraphModule, nodes: list[Node], name: str, keep_weights: bool) -> None:
    linears = [_module(gm, node) for node in nodes]
    weight, has_bias = linears[0].weight, linears[0].bias is not None
    sizes = [linear.out_features for linear in linears]
    fused = nn.Linear(
        linears[0].in_features, sum(sizes), has_bias, device=weight.device, dtype=weight.dtype
    )
    if keep_weights:
        with torch.no_grad():
            fused.weight.copy_(torch.cat([linear.weight for linear in linears]))
            if has_bias:
                fused.bias.copy_(torch.cat([linear.bias for linear in linears]))
    gm.add_submodule(name, fused.train(gm.training))
    with gm.graph.inserting_before(nodes[0]):  # the others come later
        whole = gm.graph.call_module(name, nodes[0].args)
        parts = gm.graph.call_function(torch.split, (whole, sizes), {"dim": -1})
        split = [gm.graph.call_function(operator.getitem, (parts, i)) for i in range(len(nodes))]
    for node, part in zip(nodes, split, strict=True):
        _take_place(node, part)


def _residual_block(graph: Graph, addition: Node) -> tuple[Node, list[Node], list[Node]] | None:
    """Returns where a residual block forks, its main branch and the other, in order of the graph.

    None if the addition does not end a residual block.
    """
    ends = addition.args
    if len(ends) != 2 or addition.kwargs or not all(isinstance(end, Node) for end in ends):
        return None
    first, second = (end for end in ends if isinstance(end, Node))
    before = _reached(first, _sources), _reached(second, _sources)
    common = before[0] & before[1]
    fork = next((node for node in reversed(list(graph.nodes)) if node in common), None)
    if fork is None or first is second:
        return None
    after = _reached(fork, lambda node: node.users) - {fork}
    branches = []
    for end, ancestors in ((first, before[0]), (second, before[1])):
        inside = ancestors & after
        if any(not _is_closed(node, inside, fork, end, addition) for node in inside):
            return None
        branches.append([node for node in graph.nodes if node in inside])
    shorter, longer = sorted(branches, key=len)
    return fork, longer, shorter


def _sources(node: Node) -> list[Node]:
    """Returns what a node is computed from, besides parameters and buffers."""
    return [source for source in node.all_input_nodes if source.op != "get_attr"]


def _reached(start: Node, step: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Returns a node and all that any number of steps lead to."""
    found, waiting = {start}, [start]
    while waiting:
        for node in step(waiting.pop()):
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _is_closed(node: Node, inside: set[Node], fork: Node, end: Node, addition: Node) -> bool:
    """Tells whether a node of a branch reads nothing and is read by nothing outside of it."""
    sources_known = all(source in inside or source is fork for source in _sources(node))
    allowed: Iterable[Node] = {*inside, addition} if node is end else inside
    return sources_known and all(user in allowed for user in node.users)


def _branch(gm: GraphModule, fork: Node, nodes: list[Node]) -> GraphModule:
    """Returns the nodes of a branch as a module of their own, with the same submodules."""
    graph = Graph()
    copies: dict[Node, Node] = {fork: graph.placeholder("x")}

    def copied(node: Node) -> Node:
        if node not in copies:  # a parameter or buffer
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in nodes:
        copies[node] = graph.node_copy(node, copied)
    graph.output(copies[nodes[-1]])
    return GraphModule(gm, graph)
