"""The layers over a dense matrix of the whole graph, written independently of weft: slow, short and obvious."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.graph.graph import Graph


def dense(graph: Graph, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Edge counts and summed weights [N, N]; row: destination, column: source."""
    count = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=dtype)
    weight = torch.zeros_like(count)
    csr = graph.adjacency
    for row in range(graph.num_nodes):
        for edge in range(int(csr.indptr[row]), int(csr.indptr[row + 1])):
            column = int(csr.indices[edge])
            count[row, column] += 1
            weight[row, column] += 1.0 if csr.weight is None else float(csr.weight[edge])
    return count, weight


def looped(count: Tensor) -> Tensor:
    """Every vertex with one self-loop."""
    return count - torch.diag(count.diag()) + torch.eye(len(count), dtype=count.dtype)


def gcn(p: dict[str, Tensor], graph: Graph, x: Tensor) -> Tensor:
    _, weight = dense(graph, x.dtype)
    loops = torch.ones(len(x), dtype=x.dtype)
    csr = graph.adjacency
    for row in range(graph.num_nodes):  # of several self-loops the last counts
        for edge in range(int(csr.indptr[row]), int(csr.indptr[row + 1])):
            if int(csr.indices[edge]) == row and csr.weight is not None:
                loops[row] = csr.weight[edge]
    a = weight - torch.diag(weight.diag()) + torch.diag(loops)
    scale = a.sum(1).pow(-0.5)
    return (scale[:, None] * a * scale) @ x @ p["weight"].t() + p["bias"]


def mean(count: Tensor, x: Tensor) -> Tensor:
    return count @ x / count.sum(1, keepdim=True).clamp(min=1)


def maximum(count: Tensor, x: Tensor) -> Tensor:
    rows = []
    for row in count:
        sources = [x[j] for j in row.nonzero().flatten().tolist() for _ in range(int(row[j]))]
        rows.append(torch.stack(sources).amax(0) if sources else torch.zeros(x.shape[1], dtype=x.dtype))
    return torch.stack(rows)


def sage(p: dict[str, Tensor], graph: Graph, x: Tensor, reduce: str) -> Tensor:
    count, _ = dense(graph, x.dtype)
    folded = {"mean": mean, "max": maximum, "sum": lambda c, v: c @ v}[reduce](count, x)
    return x @ p["root"].t() + folded @ p["neighbour"].t() + p["bias"]


def softmax_rows(count: Tensor, logits: Tensor) -> Tensor:
    """Softmax over in-edges, multi-edges counted; logits [N, N, H]."""
    logits = logits.masked_fill((count == 0)[..., None], -torch.inf)
    weight = count[..., None] * torch.exp(logits - logits.amax(1, keepdim=True))
    return weight / weight.sum(1, keepdim=True)


def gat(p: dict[str, Tensor], graph: Graph, x: Tensor, heads: int, concat: bool) -> Tensor:
    count = looped(dense(graph, x.dtype)[0])
    z = (x @ p["weight"].t()).view(len(x), heads, -1)
    source, target = (z * p["source"]).sum(-1), (z * p["target"]).sum(-1)
    a = softmax_rows(count, functional.leaky_relu(target[:, None] + source[None], 0.2))
    out = torch.einsum("ijh,jhd->ihd", a, z)
    return (out.flatten(1) if concat else out.mean(1)) + p["bias"]


def gatv2(p: dict[str, Tensor], graph: Graph, x: Tensor, heads: int, concat: bool) -> Tensor:
    count = looped(dense(graph, x.dtype)[0])
    key = (x @ p["key"].t() + p["key_bias"]).view(len(x), heads, -1)
    query = (x @ p["query"].t() + p["query_bias"]).view(len(x), heads, -1)
    logits = (functional.leaky_relu(query[:, None] + key[None], 0.2) * p["att"]).sum(-1)
    out = torch.einsum("ijh,jhd->ihd", softmax_rows(count, logits), key)
    return (out.flatten(1) if concat else out.mean(1)) + p["bias"]


def transformer(p: dict[str, Tensor], graph: Graph, x: Tensor, heads: int, concat: bool) -> Tensor:
    count, _ = dense(graph, x.dtype)
    q, k, v = ((x @ p[name].t() + p[f"{name}_bias"]).view(len(x), heads, -1) for name in ("query", "key", "value"))
    logits = torch.einsum("ihd,jhd->ijh", q, k) / q.shape[2] ** 0.5
    has_edge = count.sum(1) > 0
    out = torch.zeros_like(v)  # also of a vertex without in-edges, over which there is no softmax
    out[has_edge] = torch.einsum("ijh,jhd->ihd", softmax_rows(count[has_edge], logits[has_edge]), v)
    return (out.flatten(1) if concat else out.mean(1)) + x @ p["root"].t() + p["bias"]


def gin(p: dict[str, Tensor], graph: Graph, x: Tensor, norm: bool) -> Tensor:
    count, _ = dense(graph, x.dtype)
    hidden = (count @ x + (1 + p["eps"]) * x) @ p["first"].t() + p["first_bias"]
    if norm:
        centred = hidden - hidden.mean(0)
        hidden = centred / (centred.square().mean(0) + 1e-5).sqrt() * p["norm.gain"] + p["norm.shift"]
    return torch.relu(hidden) @ p["second"].t() + p["bias"]


def rgcn(p: dict[str, Tensor], graph: Graph, x: Tensor) -> Tensor:
    csr, width = graph.adjacency, x.shape[1]
    assert csr.relation is not None
    matrices = [p["neighbour"][:, k : k + width] for k in range(0, p["neighbour"].shape[1], width)]
    if "coefficients" in p:
        matrices = [sum(a * v for a, v in zip(row, matrices, strict=True)) for row in p["coefficients"]]
    out = x @ p["root"].t() + p["bias"]
    for number, matrix in enumerate(matrices):
        count = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=x.dtype)
        for row in range(graph.num_nodes):
            for edge in range(int(csr.indptr[row]), int(csr.indptr[row + 1])):
                count[row, int(csr.indices[edge])] += int(csr.relation[edge]) == number
        out = out + mean(count, x) @ matrix.t()
    return out


def user(p: dict[str, Tensor], graph: Graph, x: Tensor) -> Tensor:
    """What tests.oracle.cases.UserLayer does."""
    count, _ = dense(graph, x.dtype)
    csr, gated = graph.adjacency, []
    for row in range(graph.num_nodes):
        total = torch.zeros(x.shape[1], dtype=x.dtype)
        for edge in range(int(csr.indptr[row]), int(csr.indptr[row + 1])):
            source = x[int(csr.indices[edge])]
            message = torch.sigmoid(x[row] * p["gate"] + source) * source
            if csr.relation is not None:
                message = message * p["kind"][int(csr.relation[edge])]
            if csr.features is not None:
                message = message + csr.features[edge].to(x.dtype) @ p["edge"]
            total = total + (message if csr.weight is None else message * float(csr.weight[edge]))
        gated.append(total)
    return mean(count, x) @ p["lin.weight"].t() + p["lin.bias"] + torch.stack(gated) @ p["root.weight"].t()


def messages(p: dict[str, Tensor], graph: Graph, x: Tensor) -> Tensor:
    """What tests.oracle.cases.MessageLayer does."""
    count, _ = dense(graph, x.dtype)
    n, scale = len(x), p["log_scale"].exp()
    both = torch.cat([x[None].expand(n, n, -1), x[:, None].expand(n, n, -1)], -1)  # [dst, src, 2 D]: source first
    logits = (both @ p["score.weight"].t() + p["score.bias"]) * scale + p["log_scale"]
    value = x @ p["value.weight"].t() + p["value.bias"]
    weight = torch.where((count > 0)[..., None], count[..., None] * logits.exp(), 0.0)
    share = weight / weight.sum(1, keepdim=True).clamp(min=1e-300)
    soft = torch.einsum("ijh,jhd->ihd", share, value.view(n, 2, -1)).flatten(1)
    at_home = (x @ p["own.weight"].t() + p["own.bias"]) * (count.sum(1, keepdim=True) > 0)
    largest = maximum(count, value - scale)
    return soft + largest + at_home


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Fresh leaves with a module's values."""
    return {name: tensor.detach().clone().requires_grad_() for name, tensor in module.named_parameters()}
