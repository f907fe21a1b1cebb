"""Strategies on two gloo ranks against one process, and what sharding does to tied and shared parameters."""

import pytest
import torch

from pilotkit.train.parallelism import _separable_blocks, parallelize
from tests.torch.train.rank_scenarios import routed


@pytest.fixture(scope="module")
def reference(workload):
    """One process with the same rows per optimizer step: 2 ranks x accumulation = 1 rank x twice the accumulation."""
    found = {}
    for grad_accum_steps in (2, 4):
        trainer = workload.build_trainer(grad_accum_steps=grad_accum_steps)
        found[grad_accum_steps] = workload.run_steps(trainer, 10)
        found[grad_accum_steps]["eval_loss"] = trainer.evaluate(4)
        found[grad_accum_steps]["after_eval"] = workload.run_steps(trainer, 1)["losses"]
    return found


@pytest.mark.parametrize(
    ("scenario", "accumulated"),
    [
        ("ddp", 2),
        ("ddp_accumulated", 4),
        ("ddp_reduces_each", 4),
        ("fsdp", 2),
        ("fsdp_accumulated", 4),
        ("fsdp_reduces_each", 4),
        ("hsdp", 2),
    ],
)
def test_two_ranks_train_like_one_process(scenario, accumulated, two_ranks, reference):
    expected = reference[accumulated]
    for found in two_ranks[scenario]:
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["grad_norms"] == pytest.approx(expected["grad_norms"], abs=1e-5)
        assert found["eval_loss"] == pytest.approx(expected["eval_loss"], abs=1e-5)
        assert found["after_eval"] == pytest.approx(expected["after_eval"], abs=1e-5)
        assert found["num_tokens"] == expected["num_tokens"]
    assert expected["losses"][0] - expected["losses"][-1] > 0.05, "the run has to learn, or equality says nothing"


@pytest.mark.parametrize("scenario", ["ddp", "ddp_accumulated", "fsdp"])
def test_ranks_share_the_rows_of_a_step(scenario, two_ranks, reference):
    accumulated = {"ddp": 2, "ddp_accumulated": 4, "fsdp": 2}[scenario]
    first, second = two_ranks[scenario]
    for step, rows in enumerate(reference[accumulated]["row_ids"]):
        assert sorted(first["row_ids"][step] + second["row_ids"][step]) == sorted(rows)


@pytest.mark.parametrize("scenario", ["ddp", "fsdp", "fsdp_accumulated", "hsdp"])
def test_tied_embeddings_stay_one_parameter(scenario, two_ranks, workload):
    # token 32 * 16, positions 16 * 16, two blocks of 12 * 16^2 + 13 * 16, last norm 2 * 16; the head is the embedding.
    num_params = 32 * 16 + 16 * 16 + 2 * (12 * 16**2 + 13 * 16) + 2 * 16
    for found in two_ranks[scenario]:
        assert found["tied"]
        assert found["num_params"] == num_params


def test_sharded_mixed_precision_computes_in_bf16_and_keeps_fp32(two_ranks):
    for found in two_ranks["bf16_fsdp"]:
        assert found["compute"] == "torch.bfloat16"
        assert found["param"] == "torch.float32"
        assert found["losses"][0] == pytest.approx(3.47, abs=0.1)  # ln(32) for uniform tokens


@pytest.mark.parametrize(("scenario", "step"), [("unused", 1), ("unused_in_even_steps", 2)])
def test_ddp_names_a_parameter_without_gradient_in_the_step_that_missed_it(scenario, step, two_ranks):
    expected = (
        "1 problem in the configuration; nothing was started.\n"
        "1. parallelism.find_unused_parameters=False\n"
        "    allowed: true for this model\n"
        f"    to mend: no gradient reached unused_head.weight in step {step}; set this to true (a graph walk a step), "
        "or freeze what is never reached (requires_grad=False)"
    )
    assert [found["message"] for found in two_ranks[scenario]] == [expected, expected]


def test_the_flag_that_the_message_names_mends_it_and_frozen_layers_are_no_fault(two_ranks):
    for found in two_ranks["unused_and_searched_for"]:
        assert found["message"] == "nothing was raised"


@pytest.mark.parametrize("scenario", ["frozen_ddp", "frozen_fsdp"])
def test_frozen_halves_train_like_one_process(scenario, two_ranks, workload):
    expected = workload.run_steps(workload.build_trainer(model=workload.frozen_model(), grad_accum_steps=4), 5)
    for found in two_ranks[scenario]:
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["grad_norms"] == pytest.approx(expected["grad_norms"], abs=1e-5)


@pytest.mark.parametrize(
    ("scenario", "accumulated"),
    [
        ("routed_fsdp_searched", 4),
        ("routed_hsdp_searched", 2),
        ("routed_ddp_searched", 4),
        ("objects_fsdp_searched", 4),
        ("objects_ddp_searched", 4),
    ],
)
def test_experts_that_only_one_rank_used(scenario, accumulated, two_ranks):
    """Each rank's rows choose other experts; a layer that nobody uses is not decayed, as in the plain loop. What
    modules return may be objects that torch does not look into: backward read weights that were given back (SIGSEGV).
    """
    expected = routed(None, accumulated=accumulated)
    for found in two_ranks[scenario]:
        assert found["message"] == "nothing was raised"
        assert found["losses"] == pytest.approx(expected["losses"], abs=1e-5)
        assert found["grad_norms"] == pytest.approx(expected["grad_norms"], abs=1e-5)
        assert found["decayed"] is expected["decayed"] is False


def test_experts_with_several_micro_batches_in_mixed_precision(two_ranks, workload):
    """What only the last micro-batch reached has another dtype than what was added up; torch reduces one at a time."""
    expected = routed(None, accumulated=4, precision=workload.BF16_MIXED)
    for found in two_ranks["routed_fsdp_mixed"]:
        assert found["message"] == "nothing was raised"
        assert found["losses"] == pytest.approx(expected["losses"], rel=0.01)
        assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=0.02)
        assert found["decayed"] is False


def test_a_layer_that_no_rank_uses_is_left_alone_under_sharding(two_ranks):
    for found in two_ranks["never_used"]:
        assert found["decayed"] is False
        assert len(found["losses"]) == 3


@pytest.mark.parametrize(
    ("scenario", "key", "words"),
    [
        (
            "routed_fsdp",
            "parallelism.find_unused_parameters=False",
            "in step 1 a gradient reached experts.0.0.bias, experts.0.0.weight on some ranks and not on others; set "
            "this to true (one more exchange a step, and with mixed precision one reduction a micro-batch), or freeze "
            "what is never reached (requires_grad=False)",
        ),
        (
            "experts_are_blocks",
            "parallelism.strategy=fsdp",
            "rank 0 came to experts.0 where rank 1 came to experts.1: blocks that only some ranks run cannot be "
            "sharded one by one; name a list whose blocks every rank runs (model.blocks), or use ddp with "
            "parallelism.find_unused_parameters=true",
        ),
        (
            "upcast",
            "parallelism.strategy=fsdp",
            "head met two dtypes (mat1 and mat2 must have the same dtype, but got Float and BFloat16): under sharding "
            "in mixed precision weights come in the compute dtype and autocast does not run, so cast its input back "
            "before it (h.to(layer.weight.dtype)), or take precision=fp32",
        ),
        (
            "own_dtype",
            "parallelism.strategy=fsdp",
            "head.bias, head.weight got a gradient in torch.float32 where others have torch.bfloat16, as of a module "
            "that casts its weights in its forward; a sharded group reduces one dtype, so leave them in the one they "
            "come in, or take precision=fp32",
        ),
        (
            "used_in_the_first_micro_batch",
            "parallelism.find_unused_parameters=False",
            "no gradient reached early_head.weight in step 1; set this to true (a graph walk a step), or freeze what "
            "is never reached (requires_grad=False)",
        ),
        (
            "scalar",
            "parallelism.strategy=fsdp",
            "temperature has no dimension to cut; make it a tensor with one element (torch.ones(1), not "
            "torch.tensor(1.0))",
        ),
    ],
)
def test_what_a_strategy_cannot_do_is_refused_by_name(scenario, key, words, two_ranks):
    for found in two_ranks[scenario]:
        head, problem, _, mend = found["message"].splitlines()
        assert head == "1 problem in the configuration; nothing was started."
        assert problem == f"1. {key}"
        assert mend == f"    to mend: {words}"


def test_a_forward_that_casts_up_trains_under_autocast(two_ranks):
    assert [found["message"] for found in two_ranks["upcast_ddp"]] == ["nothing was raised"] * 2


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_dtypes_as_seen_in_step_1_with_batch_norm_and_a_buffer(strategy, two_ranks):
    """Case R58: buffers are not cast by fully_shard, and are what the model's author left them."""
    for table in two_ranks[f"dtypes_{strategy}"]:
        weights = 8 * 8 + 8 + 8 + 8
        assert table["parameters"] == {"float32": weights}
        assert set(table["products"]) == {"bfloat16"}
        # DDP reduces the gradients of float32 parameters; fully_shard gathers in bfloat16 and reduces in float32.
        reduced = {"ddp": {"allreduce"}, "fsdp": {"reduce_scatter", "allgather"}}[strategy]
        assert set(table["collectives"]) >= reduced
        reduce = table["collectives"]["allreduce" if strategy == "ddp" else "reduce_scatter"]
        assert set(reduce) == {"float32"}
        # The mask, and the norm's running mean and variance; its count of batches is an integer.
        assert table["buffers"] == {"float32": 8 + 8 + 8, "int64": 1}
        assert table["output"] == ["float32"]


@pytest.mark.parametrize("scenario", ["nan_ddp", "nan_fsdp"])
def test_all_ranks_stop_together_and_name_the_rank(scenario, two_ranks):
    expected = {
        "message": "step 3: the loss is nan (first on rank 1); every rank stops here",
        "step": 3,
        "rank": 1,
    }
    assert two_ranks[scenario] == [expected, expected]


def test_a_gradient_that_was_summed_over_ranks_names_none(two_ranks):
    for found in two_ranks["inf_gradient_ddp"]:
        assert (found["step"], found["rank"]) == (3, None)
        assert found["message"].endswith("(over all ranks together); every rank stops here")


def test_overflow_on_one_shard_is_skipped_on_every_rank(two_ranks):
    for found in two_ranks["overflow"]:
        assert found["skipped"] == [True, False]
        assert found["scale"] == 32768.0
        assert found["unchanged"]
        assert found["num_skipped_steps"] == 1
        assert found["lrs"][0] == found["lrs"][1]
    # A parameter of one row: the second rank has no part of it, and decides like the first.
    assert [found["rows_of_one_row"] for found in two_ranks["overflow"]] == [1, 0]


def test_single_is_the_same_module(workload):
    model = workload.build_model()
    same = parallelize(
        model,
        strategy="single",
        dp_replicate=1,
        dp_shard=1,
        precision=workload.FP32,
        device=torch.device("cpu"),
        blocks=None,
        reshard_after_forward=True,
        find_unused_parameters=False,
    )
    assert same is model


def test_blocks_that_share_a_parameter_are_left_to_the_root_group():
    model = torch.nn.Module()
    model.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(4))
    model.blocks[1].weight = model.blocks[0].weight
    model.blocks.append(model.blocks[3])
    assert _separable_blocks(model, model.blocks) == [model.blocks[2]]
