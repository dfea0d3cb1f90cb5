"""What an operator costs: every matrix product in it, by the shapes of its operands.

A product of an (M, K) and a (K, N) matrix is 2·M·K·N FLOPs. Its backward pass is one product of
the same size for each operand that needs a gradient, so a formula names products with their
operands, and forward and backward costs follow from these. Attention is its two products, scores
and values, over the full square even if it is causal (the convention "palm"). Everything that is no
matrix product, convolution or attention costs nothing, as is usual for MFU.

The formulas are ours to check against the operators' documentation; sources of the counting rules:
PaLM, arXiv 2204.02311, appendix B; for convolutions, one multiply-add per output element and weight
it meets, padding included.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Arguments = Mapping[str, Any]
"""The arguments of an operator by the names in its schema; defaults may be absent."""


class UncountableError(Exception):
    """The cost can't be known from shapes; the message says why."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product. An operand is given by the tensors it is computed from: it needs a
    gradient if any of them does."""

    flops: int
    operands: tuple[tuple[torch.Tensor, ...], ...]
    is_convolution: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the product is computed: that of its first operand."""
        return self.operands[0][0].dtype

    @property
    def device(self) -> torch.device:
        """Where the product is computed."""
        return self.operands[0][0].device


Formula = Callable[[Arguments, Any], list[Product]]


def _matmul(left_name: str, right_name: str) -> Formula:
    """(…, M, K) x (…, K, N), or x (K), as in mm, bmm, mv and dot."""

    def products(arguments: Arguments, _: Any) -> list[Product]:
        left, right = arguments[left_name], arguments[right_name]
        columns = right.shape[-1] if right.dim() > 1 else 1
        return [Product(2 * left.numel() * columns, ((left,), (right,)))]

    return products


def _linear(arguments: Arguments, _: Any) -> list[Product]:
    left, weight = arguments["input"], arguments["weight"]
    rows_of_weight = weight.shape[0] if weight.dim() > 1 else 1
    return [Product(2 * left.numel() * rows_of_weight, ((left,), (weight,)))]


def _grouped_mm(arguments: Arguments, _: Any) -> list[Product]:
    """Groups are slices of rows, of columns, of the inner dimension, or whole matrices.

    Where each group ends is a value on the device, but the sum over groups needs only shapes.
    """
    left, right = arguments["self"], arguments["mat2"]
    groups_of_columns = left.shape[0] if left.dim() == 3 and right.dim() == 2 else 1
    flops = 2 * left.numel() // groups_of_columns * right.shape[-1]
    return [Product(flops, ((left,), (right,)))]


def _convolution(arguments: Arguments, output: Any) -> list[Product]:
    """Weights are (out, in / groups, …); transposed, (in, out / groups, …)."""
    image, weight = arguments["input"], arguments["weight"]
    one_side = image if arguments["transposed"] else output
    flops = 2 * one_side.numel() * (weight.numel() // weight.shape[0])
    return [Product(flops, ((image,), (weight,)), is_convolution=True)]


def _attention(heads_first: bool) -> Formula:
    """Queries (B, H, S, D) if `heads_first`, else (B, S, H, D). There may be fewer key heads."""

    def products(arguments: Arguments, _: Any) -> list[Product]:
        query, key, value = arguments["query"], arguments["key"], arguments["value"]
        for name in ("cum_seq_q", "cu_seqlens_q", "seqused_k", "seqlen_k", "block_table"):
            if arguments.get(name) is not None:
                raise UncountableError("packed attention: its cost depends on values on the device")
        for name in ("window_size", "window_size_left", "window_size_right"):
            window = arguments.get(name)
            if window is not None and window >= 0:
                raise UncountableError("attention in a sliding window has no formula")
        keys = key.shape[-2] if heads_first else key.shape[1]
        query_rows = query.numel() // query.shape[-1]
        return [
            Product(2 * query.numel() * keys, ((query,), (key,))),
            Product(2 * query_rows * keys * value.shape[-1], ((query, key), (value,))),
        ]

    return products


def _fused_layer(inputs: tuple[str, ...], *feed_forward: str) -> Formula:
    """Self-attention with its projections in one operator, which runs in evaluation only."""

    def products(arguments: Arguments, _: Any) -> list[Product]:
        source = arguments[inputs[0]]
        if source.is_nested or any(arguments[name].shape != source.shape for name in inputs):
            raise UncountableError("fused attention on unlike or nested inputs has no formula")
        batch, length, width = source.shape
        weights = [arguments[name] for name in ("qkv_weight", "proj_weight", *feed_forward)]
        scores = values = Product(2 * batch * length * length * width, ((source,), (source,)))
        linear = [
            Product(2 * batch * length * weight.numel(), ((source,), (weight,)))
            for weight in weights
        ]
        return [*linear, scores, values]

    return products


FORMULAS: dict[str, Formula] = {
    "mm": _matmul("self", "mat2"),
    "bmm": _matmul("self", "mat2"),
    "addmm": _matmul("mat1", "mat2"),
    "_addmm_activation": _matmul("mat1", "mat2"),
    "addbmm": _matmul("batch1", "batch2"),
    "baddbmm": _matmul("batch1", "batch2"),
    "mv": _matmul("self", "vec"),
    "addmv": _matmul("mat", "vec"),
    "dot": _matmul("self", "tensor"),
    "vdot": _matmul("self", "other"),
    "linear": _linear,
    "_int_mm": _matmul("self", "mat2"),
    "_scaled_mm": _matmul("self", "mat2"),
    "_grouped_mm": _grouped_mm,
    "_scaled_grouped_mm": _grouped_mm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "_scaled_dot_product_flash_attention": _attention(heads_first=True),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(heads_first=True),
    "_scaled_dot_product_efficient_attention": _attention(heads_first=True),
    "_scaled_dot_product_cudnn_attention": _attention(heads_first=True),
    "_scaled_dot_product_fused_attention_overrideable": _attention(heads_first=True),
    "_scaled_dot_product_attention_math_for_mps": _attention(heads_first=True),
    "_flash_attention_forward": _attention(heads_first=False),
    "_efficient_attention_forward": _attention(heads_first=False),
    "_native_multi_head_attention": _fused_layer(("query", "key", "value")),
    "_transformer_encoder_layer_fwd": _fused_layer(("src",), "ffn_weight_1", "ffn_weight_2"),
}
"""Formulas of aten operators by name, without the underscore of in-place variants."""

# A name with one of these words names an operator that multiplies matrices, of PyTorch or not.
_COSTLY_WORD = re.compile(
    r"""(?:^|_)(?:\w?mm|\w*addmm|\w*bmm|\w*mv|matmul|\w*gemm|linear|conv[123]?d?|convolution
    |depthwise\w*|attention|attn|flash\w*|sdpa|mha|lstm|gru|rnn|transformer|moe|mlp|experts?|einsum
    |v?dot|trilinear|tbc|transpose[23]d|int[48]pack|mamba\w*|ssd|ssm)(?:_|$|\d)""",
    re.VERBOSE | re.IGNORECASE,
)
# aten operators that bear such a word and multiply no matrices.
_FREE = frozenset(
    {
        "_compute_linear_combination",
        "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell",
        "_cudnn_rnn_flatten_weight",
        "_fused_sdp_choice",
        "_mkldnn_transpose",
        "_cslt_sparse_mm_search",
        "_convert_weight_to_int4pack",
        "_convert_weight_to_int4pack_for_cpu",
        "mkldnn_reorder_conv2d_weight",
        "mkldnn_reorder_conv3d_weight",
        "upsample_linear1d",
        "upsample_trilinear3d",
    }
)


def looks_costly(namespace: str, name: str) -> bool:
    """Whether an operator without a formula seems to multiply matrices, by its name."""
    if namespace == "aten" and name in _FREE:
        return False
    return _COSTLY_WORD.search(name) is not None
