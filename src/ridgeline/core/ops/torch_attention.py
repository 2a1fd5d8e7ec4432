"""The PyTorch implementation of attention, over one sequence or over several, and the attention masks.

Shapes: B sequences, Q queries and L keys of one sequence, T queries and N keys of several, H heads, K kv heads, G = H /
K, D head dim, W width of a value.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.work import AttentionPattern


def attend_segment(
    op: Attention, q_QHD: Tensor, k_KLD: Tensor, v_KLW: Tensor, first: int = 0, *, reach: AttentionPattern | None = None
) -> Tensor:
    """Attend the queries of one sequence to L of its keys: [Q, heads, W].

    Args:
        op: The attention op, which defines mask, scale, cap, sinks and bias.
        q_QHD: The queries [Q, heads, D]. They belong to the last Q positions of the sequence; in cross-attention and
            full attention their positions do not matter.
        k_KLD: The keys [kv_heads, L, D].
        v_KLW: The values [kv_heads, L, W].
        first: The position of the first key.
        reach: The attention pattern, if it is not the op's.
    """
    queries, keys, reach = q_QHD.shape[0], k_KLD.shape[1], reach or op.attention_pattern
    mask_QL, causal = None, reach.kind in ("causal", "window", "chunked") and queries == keys and first == 0
    if reach.kind in ("causal", "window", "chunked") and not (causal and not _binds(reach, keys)):
        mask_QL, causal = reach_mask(reach, queries, first + keys, first, q_QHD.device), False
    elif reach.kind == "local" and keys > reach.size + 1:
        mask_QL = reach_mask(reach, queries, keys, 0, q_QHD.device)
    if op.plain:
        out_1HQW = functional.scaled_dot_product_attention(
            q_QHD.transpose(0, 1)[None],
            k_KLD[None],
            v_KLW[None],
            attn_mask=mask_QL,
            is_causal=causal,
            scale=op.scale,
            enable_gqa=q_QHD.shape[1] != k_KLD.shape[0],
        )
        return out_1HQW[0].transpose(0, 1)
    if causal:
        mask_QL = reach_mask(reach, queries, keys, 0, q_QHD.device)
    groups = q_QHD.shape[1] // k_KLD.shape[0]
    k_HLD, v_HLW = k_KLD.repeat_interleave(groups, 0), v_KLW.repeat_interleave(groups, 0)
    scores_HQL = (q_QHD.transpose(0, 1) @ k_HLD.transpose(-1, -2)).float() * op.scale
    position_Q = torch.arange(first + keys - queries, first + keys, device=q_QHD.device)
    distance_QL = torch.arange(first, first + keys, device=q_QHD.device) - position_Q[:, None]
    visible_QL = torch.ones_like(distance_QL, dtype=torch.bool) if mask_QL is None else mask_QL
    weights_HQL = attention_weights(op, scores_HQL, distance_QL, visible_QL)
    return (weights_HQL.to(v_HLW.dtype) @ v_HLW).transpose(0, 1)


def attend_padded(
    op: Attention, q_BHD: Tensor, k_KBLD: Tensor, v_KBLW: Tensor, distance_BL: Tensor, visible_BL: Tensor
) -> Tensor:
    """Attend one query each of B sequences to keys that are padded to one length: [B, heads, W].

    Keys and values that are not visible must be finite: their weight is exactly 0, but 0 x NaN would be NaN.

    Args:
        op: The attention op, which defines scale, cap, sinks and bias.
        q_BHD: The queries [B, heads, D].
        k_KBLD: The keys [kv_heads, B, L, D].
        v_KBLW: The values [kv_heads, B, L, W].
        distance_BL: The key position minus the query position, int64 [B, L].
        visible_BL: Whether the query sees the key, bool [B, L].
    """
    sequences, heads, dim = q_BHD.shape
    kv_heads = k_KBLD.shape[0]
    q_KBGD = q_BHD.view(sequences, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    scores_KBGL = (q_KBGD @ k_KBLD.transpose(-1, -2)).float() * op.scale
    if op.plain:
        weights_KBGL = scores_KBGL.masked_fill_(~visible_BL[None, :, None, :], float("-inf")).softmax(dim=-1)
    else:
        scores_HBL = scores_KBGL.transpose(1, 2).flatten(0, 1)
        weights_HBL = attention_weights(op, scores_HBL, distance_BL, visible_BL)
        weights_KBGL = weights_HBL.view(kv_heads, -1, *weights_HBL.shape[1:]).transpose(1, 2)
    out_KBGW = weights_KBGL.to(v_KBLW.dtype) @ v_KBLW
    return out_KBGW.transpose(0, 1).reshape(sequences, heads, v_KBLW.shape[-1])


def attention_weights(op: Attention, scores_HxL: Tensor, distance_xL: Tensor, visible_xL: Tensor) -> Tensor:
    """Return the softmax of scaled scores, fp32 [heads, ..., L], after the op's soft cap, bias, mask and sinks."""
    if op.softcap is not None:
        scores_HxL = (scores_HxL / op.softcap).tanh() * op.softcap
    if op.bias is not None:
        scores_HxL = scores_HxL + op.bias(distance_xL).float()
    scores_HxL = scores_HxL.masked_fill(~visible_xL, float("-inf"))
    if op.sinks_H is None:
        return scores_HxL.softmax(dim=-1)
    sink_Hx1 = op.sinks_H.float().view(-1, *[1] * (scores_HxL.dim() - 1)).expand(*scores_HxL.shape[:-1], 1)
    return torch.cat([scores_HxL, sink_Hx1], dim=-1).softmax(dim=-1)[..., :-1]


def _binds(reach: AttentionPattern, keys: int) -> bool:
    """Return whether an attention pattern's window or chunk hides any of `keys` positions."""
    return reach.size != 0 and keys > reach.size


def reach_mask(reach: AttentionPattern, queries: int, end: int, first: int, device: torch.device) -> Tensor:
    """Return an attention pattern's mask: whether the last `queries` of `end` positions see each key, bool [Q, L].

    The keys are the positions from `first` on.
    """
    key_L = torch.arange(first, end, device=device)
    query_Q1 = torch.arange(end - queries, end, device=device)[:, None]
    return visible(reach, query_Q1, key_L)


def visible(reach: AttentionPattern, query: Tensor, key: Tensor) -> Tensor:
    """Return whether the query at one position sees the key at another, in the same sequence; shapes broadcast."""
    match reach.kind:
        case "window":
            return (key <= query) & (key > query - reach.size)
        case "chunked":
            return (key <= query) & (key // reach.size == query // reach.size)
        case "causal":
            return key <= query
        case "local":
            return (key - query).abs() <= reach.size
        case _:
            return torch.ones_like(key <= query)


def attend_each(
    op: Attention,
    q_THD: Tensor,
    k_NKD: Tensor,
    v_NKW: Tensor | None,
    queries: Sequence[int],
    keys: Sequence[int],
) -> Tensor:
    """Attend whole sequences one after the other, without a KV cache: [T, heads, W].

    Args:
        op: The attention op.
        q_THD: The queries [T, heads, D].
        k_NKD: The keys [N, kv_heads, D].
        v_NKW: The values [N, kv_heads, W]; None for latents.
        queries: The number of queries of each sequence.
        keys: The number of keys of each sequence.
    """
    if q_THD.is_meta:
        return q_THD.new_empty(*q_THD.shape[:2], op.value_dim)
    parts = zip(
        torch.split(q_THD, list(queries)),
        torch.split(k_NKD, list(keys)),
        torch.split(value_of(op, k_NKD, v_NKW), list(keys)),
        strict=True,
    )
    return torch.cat([attend_segment(op, q, k.transpose(0, 1), v.transpose(0, 1)) for q, k, v in parts])


def value_of(op: Attention, k_xD: Tensor, v_xW: Tensor | None) -> Tensor:
    """Return attention values [..., W], which for latents are the first entries of the keys."""
    if op.spec.v_dim:
        assert v_xW is not None
        return v_xW
    return k_xD[..., : op.value_dim]
