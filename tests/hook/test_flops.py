"""The counted FLOPs are those worked out by hand. Two steps: the first opens the window."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import flopwatch
from flopwatch.hook.formulas import FORMULAS, UncountableError
from tests.hook.toys import (
    BATCH,
    GPT,
    GPT_FORWARD,
    GPT_TRAINING,
    HEAD,
    HEADS,
    LENGTH,
    TOKENS,
    WIDTH,
    Block,
    lora_gpt,
    lora_training,
    report,
    tokens,
    train,
)


def test_first_layer_of_an_mlp_needs_no_input_gradient() -> None:
    model = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 10))
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(8, 24))
    assert report().train_flops == {"float32": 2 * (2 * 8 * 24 * 48) + 3 * (2 * 8 * 48 * 10)}


@pytest.mark.parametrize("recompute", [None, "reentrant", "non-reentrant"])
def test_gpt_counts_attention_as_full_square_and_never_recomputation(recompute: str | None) -> None:
    model = GPT(recompute)
    flopwatch.watch(model)
    train(model, 3, tokens)
    assert report().train_flops == {"float32": 2 * GPT_TRAINING}
    assert report().reason is None


@pytest.mark.parametrize("recompute", [None, "reentrant", "non-reentrant"])
def test_frozen_weights_of_a_lora_model_cost_no_weight_gradient(recompute: str | None) -> None:
    model = lora_gpt(recompute)
    flopwatch.watch(model)
    train(model, 2, tokens)
    assert report().train_flops == {"float32": lora_training(recompute == "reentrant")}


def test_attention_in_separate_products_costs_what_fused_attention_costs() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model = GPT()
        flopwatch.watch(model)
        train(model, 2, tokens)
    assert report().train_flops == {"float32": GPT_TRAINING}


def test_every_micro_batch_of_an_accumulated_step_counts() -> None:
    model = GPT()
    flopwatch.watch(model)
    train(model, 3, tokens, accumulate=4)
    assert report().train_flops == {"float32": 2 * 4 * GPT_TRAINING}
    assert report().steps == 2


def test_convolutions_count_their_groups() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=4),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    )
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(2, 3, 16, 16))
    first = 2 * (2 * 8 * 16 * 16) * (3 * 9)
    grouped = 2 * (2 * 8 * 16 * 16) * (2 * 9)
    depthwise = 2 * (2 * 8 * 8 * 8) * 9
    transposed = 2 * (2 * 8 * 8 * 8) * (4 * 2 * 2)
    assert report().train_flops == {"float32": 2 * first + 3 * (grouped + depthwise + transposed)}


class MixtureOfExperts(nn.Module):
    """Top 2 of 4 experts, token by token: shapes inside depend on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            output = output.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return output


def test_mixture_of_experts_counts_the_experts_that_were_used() -> None:
    model = MixtureOfExperts()
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(TOKENS, WIDTH))
    gate, experts = 2 * TOKENS * WIDTH * 4, 2 * (2 * TOKENS) * WIDTH * WIDTH
    assert report().train_flops == {"float32": 2 * (gate + experts)}


class GroupedExperts(nn.Module):
    """All experts in one grouped product of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, WIDTH, 16, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
        return torch._grouped_mm(x, self.weight, offs=ends)


def test_grouped_product_counts_each_row_once_in_its_dtype() -> None:
    model = GroupedExperts()
    flopwatch.watch(model)
    train(model, 2, lambda: torch.randn(32, WIDTH, dtype=torch.bfloat16))
    assert report().train_flops == {"bfloat16": 2 * (2 * 32 * WIDTH * 16)}


def test_autocast_is_counted_in_the_dtype_it_computes_in() -> None:
    model = GPT()
    flopwatch.watch(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model, 2, tokens)
    assert report().train_flops == {"bfloat16": GPT_TRAINING}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_is_kept_apart_from_training(mode: type) -> None:
    model = GPT()
    flopwatch.watch(model)
    train(model, 2, tokens)
    model.eval()
    with mode():
        model(tokens())
        model(tokens(batch=2 * BATCH))
    assert report().train_flops == {"float32": GPT_TRAINING}
    assert report().forward_only_flops == {"float32": 3 * GPT_FORWARD}


def test_forward_in_a_phase_is_evaluation_even_with_gradients() -> None:
    model = GPT()
    flopwatch.watch(model)
    with flopwatch.phase("eval"):
        model(tokens())
    train(model, 2, tokens)
    assert report().train_flops == {"float32": GPT_TRAINING}
    assert report().forward_only_flops == {"float32": GPT_FORWARD}


def test_unfreezing_parameters_is_seen_at_the_next_step() -> None:
    model = GPT().requires_grad_(False)
    model.head.requires_grad_(True)
    flopwatch.watch(model)
    train(model, 2, tokens)
    only_head = GPT_FORWARD + HEAD
    assert report().train_flops == {"float32": only_head}
    model.requires_grad_(True)
    train(model, 1, tokens)
    assert report().train_flops == {"float32": only_head + GPT_TRAINING}


def test_other_shapes_are_counted_anew() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    flopwatch.watch(model)
    rows = iter([1, 2, 3, 2])
    train(model, 4, lambda: torch.randn(next(rows), WIDTH))
    assert report().train_flops == {"float32": 2 * 2 * (2 + 3 + 2) * WIDTH * WIDTH}


def test_two_watched_models_add_up() -> None:
    teacher, student = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    flopwatch.watch(teacher)
    flopwatch.watch(student)
    flopwatch.watch(student)

    def distil() -> torch.Tensor:
        with torch.no_grad():
            return teacher(torch.randn(TOKENS, WIDTH))

    train(student, 2, distil)
    product = 2 * TOKENS * WIDTH * WIDTH
    assert report().train_flops == {"float32": 2 * product}
    assert report().forward_only_flops == {"float32": 2 * product}


def test_fused_encoder_layers_of_evaluation_are_counted() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
    model = nn.Sequential(layer, layer, layer).eval()
    flopwatch.watch(model)
    with torch.no_grad():
        model(torch.randn(BATCH, LENGTH, WIDTH))
    linear = 2 * TOKENS * (3 + 1 + 4 + 4) * WIDTH * WIDTH
    attention = 2 * 2 * BATCH * LENGTH * LENGTH * WIDTH
    assert report().forward_only_flops == {"float32": 3 * (linear + attention)}


def test_fused_attention_of_evaluation_is_counted() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    model = Attention().eval()
    flopwatch.watch(model)
    with torch.no_grad():
        model(torch.randn(BATCH, LENGTH, WIDTH))
    linear = 2 * TOKENS * (3 + 1) * WIDTH * WIDTH
    attention = 2 * 2 * BATCH * LENGTH * LENGTH * WIDTH
    assert report().forward_only_flops == {"float32": linear + attention}


class SharedKeys(nn.Module):
    """Eight query heads over two heads that are keys and values at once."""

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, enable_gqa=True)


def test_grouped_query_attention_counts_query_heads() -> None:
    model = SharedKeys()
    flopwatch.watch(model)
    with torch.no_grad():
        model(torch.randn(2, 8, 16, 4), torch.randn(2, 2, 24, 4))
    assert report().forward_only_flops == {"float32": 2 * (2 * 2 * 8 * 16 * 24 * 4)}


def test_no_mfu_and_a_reason_where_an_operator_has_no_formula() -> None:
    model = nn.LSTM(WIDTH, WIDTH)
    flopwatch.watch(model)
    model(torch.randn(LENGTH, BATCH, WIDTH))
    assert "mkldnn_rnn_layer" in (report().reason or "")


def test_no_mfu_and_a_reason_for_a_foreign_attention_operator() -> None:
    @torch.library.custom_op("flopwatch_test::tiled_attention", mutates_args=())
    def tiled_attention(query: torch.Tensor) -> torch.Tensor:
        return query * 2

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tiled_attention(x @ x.mT)

    model = Model()
    flopwatch.watch(model)
    model(torch.randn(4, 4))
    assert "flopwatch_test::tiled_attention" in (report().reason or "")


def test_no_mfu_and_a_reason_for_a_product_in_a_foreign_autograd_function() -> None:
    class FusedLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x @ x.mT

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FusedLoss.apply(x)

    model = Model()
    flopwatch.watch(model)
    model(torch.randn(4, 4, requires_grad=True))
    assert "FusedLoss" in (report().reason or "")


def test_no_mfu_and_a_reason_where_the_forward_pass_runs_a_backward_pass() -> None:
    class Penalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layer(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            return out + slope

    model = Penalized()
    flopwatch.watch(model)
    model(torch.randn(BATCH, WIDTH, requires_grad=True))
    assert "a backward pass of its own" in (report().reason or "")


@pytest.mark.parametrize(
    ("name", "argument", "reason"),
    [
        ("_flash_attention_forward", {"window_size_left": 128}, "sliding window"),
        ("_flash_attention_forward", {"cum_seq_q": torch.zeros(3)}, "packed attention"),
        ("_efficient_attention_forward", {"window_size": 128}, "sliding window"),
        ("_efficient_attention_forward", {"cu_seqlens_q": torch.zeros(3)}, "packed attention"),
    ],
)
def test_attention_whose_cost_shapes_do_not_tell_is_not_guessed(
    name: str, argument: dict[str, object], reason: str
) -> None:
    heads = torch.empty(BATCH, LENGTH, HEADS, 8, device="meta")
    plain = {"query": heads, "key": heads, "value": heads, "window_size_left": -1}
    one = 2 * BATCH * HEADS * LENGTH * LENGTH * 8
    assert [product.flops for product in FORMULAS[name](plain, None)] == [one, one]
    with pytest.raises(UncountableError, match=reason):
        FORMULAS[name](plain | argument, None)


def test_no_mfu_and_a_reason_where_nothing_is_multiplied() -> None:
    model = nn.LayerNorm(WIDTH)
    flopwatch.watch(model)
    model(torch.randn(4, WIDTH))
    assert "no matrix product" in (report().reason or "")


def test_block_recomputed_by_an_outer_module_counts_once() -> None:
    block, head = Block(), nn.Linear(WIDTH, WIDTH)
    flopwatch.watch(block)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = block, head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False))

    train(Outer(), 2, lambda: torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True))
    assert report().train_flops == {"float32": 3 * (GPT_FORWARD - HEAD) / 2}
