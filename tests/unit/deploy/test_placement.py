"""A placement gives every GPU to one role, on a machine or on the nodes of a cluster, or says what
is wrong with its line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol.placement import (
    Gpu,
    PlacementError,
    choose,
    choose_for_cluster,
    divide,
    gpu_variables,
    parse,
    split_problem,
    visible_gpus,
)

from deploy.launches import cluster_variables, ray_resources, stack_launches
from tests.tables import table

WISH = "learner=0-3 rollout=4,5 rollout=6,7"


@st.composite
def boxes_and_lines(draw: st.DrawFn) -> tuple[dict[str, int], str]:
    """A box of one machine, or a cluster of nodes, all of it given to roles at random."""
    nodes = draw(st.sampled_from([("",), ("a",), ("a", "b"), ("10.0.0.1", "n-2", "c")]))
    box = {node: draw(st.integers(2, 9)) for node in nodes}
    learner = []
    engines = []
    for node, number in box.items():
        prefix = f"{node}:" if node else ""
        indices = draw(st.permutations(range(number)))
        cut = draw(st.integers(1, number - 1))
        learner += [f"{prefix}{index}" for index in indices[:cut]]
        remaining = list(indices[cut:])
        while remaining:
            size = draw(st.integers(1, len(remaining)))
            chunk = remaining[:size]
            del remaining[:size]
            role = draw(st.sampled_from(["rollout", "rollout", "idle"])) if engines else "rollout"
            engines.append(f"{role}={prefix}{','.join(map(str, chunk))}")
    return box, " ".join([f"learner={','.join(learner)}", *engines])


@given(boxes_and_lines())
def test_every_gpu_of_any_box_has_one_role(box_and_line: tuple[dict[str, int], str]) -> None:
    box, line = box_and_line
    placement = parse(line, box)
    owners = [gpu for bundle in placement.bundles for gpu in bundle.gpus] + list(placement.idle)
    assert sorted(owners) == sorted(Gpu(node, i) for node, n in box.items() for i in range(n))
    assert placement.num_ranks == sum(len(bundle.gpus) for bundle in placement.learner)
    assert all(len({gpu.node for gpu in bundle.gpus}) == 1 for bundle in placement.bundles)
    assert parse(str(placement), box) == placement


@given(boxes_and_lines(), st.data())
def test_one_gpu_too_few_too_many_or_twice_is_told(
    box_and_line: tuple[dict[str, int], str], data: st.DataObject
) -> None:
    box, line = box_and_line
    node = data.draw(st.sampled_from(sorted(box)))
    with pytest.raises(
        PlacementError, match=f"no service has GPU {f'{node}:' if node else ''}{box[node]}"
    ):
        parse(line, box | {node: box[node] + 1})
    with pytest.raises(PlacementError, match=f"{box[node] - 1} does not exist"):
        parse(line, box | {node: box[node] - 1})
    gpu = Gpu(node, data.draw(st.integers(0, box[node] - 1)))
    with pytest.raises(PlacementError, match=f"GPU {gpu} is "):
        parse(f"{line} rollout={gpu}", box)


@given(st.text(max_size=30) | st.from_regex(r"((learner|rollout|judge)=[ab:0-9,@.-]{1,9} ?){1,4}"))
def test_any_text_is_a_placement_or_a_clear_error(line: str) -> None:
    try:
        message = str(parse(line))
    except PlacementError as error:
        message = str(error)
    assert message.startswith(("learner=", "WEIR_GPUS="))


@given(st.integers(1, 64))
def test_a_box_that_nobody_divides_is_divided_wholly(number: int) -> None:
    placement = divide(number)
    assert parse(str(placement), {"": number}) == placement
    assert placement.num_ranks == max(1, number // 2)


@table("""
    line                                | words
                                        | no GPU for the learner
    learner=0                           | no GPU for the rollout
    learner=0,0 rollout=1               | GPU 0 is named 2 times
    learner=0 rollout=0@0.5 judge=0@0.4 | exceed 0.8
    learner=0@0.5 rollout=0@0.4         | 'learner=0@0.5' is not
    learner=0 rollout=1@nan             | 'rollout=1@nan' is not
    learner=0 rollout=1 idle=1          | GPU 1 is idle and has another role
    learner=0,1 rollout=1 rollout=3     | GPU 1 is listed twice
    learner=0 rollout=1@0.5:turns       | takes turns with no learner
    learner=0 rollout=0:turns           | 'rollout=0:turns' is not
    learner=0 judge=0@0.4:turns         | 'judge=0@0.4:turns' is not
    learner=0 rollout=a:1               | some GPUs have a node and others have none
    learner=a:0 rollout=a:1,b:0         | must be on one node
""")
def test_a_wrong_line_says_what_is_wrong(line: str, words: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse(line)
    assert words in str(caught.value)


def test_a_bundle_binds_its_processes_to_its_gpus() -> None:
    learner, engine, _ = parse(WISH).bundles
    assert gpu_variables(learner, tuple("01234567"))["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    visible = ("8", "9", "10", "11", "GPU-e", "GPU-f", "GPU-g", "GPU-h")
    assert gpu_variables(engine, visible) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-e,GPU-f",
        "WEIR_NUM_GPUS": "2",
        "WEIR_ROLLOUT_TENSOR_PARALLEL_SIZE": "2",
    }


def test_a_shared_gpu_leaves_the_learner_the_rest() -> None:
    placement = parse("learner=0,1 rollout=0@0.25 judge=0@0.35")
    assert placement.learner_share(Gpu("", 0)) == pytest.approx(0.3)
    assert placement.learner_share(Gpu("", 1)) == pytest.approx(0.9)
    assert gpu_variables(placement.rollouts[0])["WEIR_ROLLOUT_GPU_MEMORY"] == "0.25"


def test_an_engine_that_takes_turns_leaves_the_learner_its_share_while_it_sleeps() -> None:
    placement = parse("learner=0,1 rollout=1@0.5:turns judge=1@0.25")
    assert placement.learner_share(Gpu("", 1)) == pytest.approx(0.62)
    assert placement.learner_share(Gpu("", 1), at_rest=True) == pytest.approx(0.15)
    for bundle in (*placement.learner, *placement.rollouts):
        assert gpu_variables(bundle)["WEIR_TURNS"] == "1"


def test_a_machine_with_gpus_divides_them_or_obeys() -> None:
    eight = [f"nvidia{number}" for number in range(8)] + ["nvidiactl", "nvidia-uvm"]
    assert str(choose({}, eight).placement).startswith("learner=0-3 rollout=4 rollout=5")
    assert str(choose({"CUDA_VISIBLE_DEVICES": "6,7"}, eight).placement) == "learner=0 rollout=1"
    assert len(choose({"WEIR_GPUS": WISH}, eight).placement.rollouts) == 2
    for text, devices in (("2", eight), ("many", [])):
        with pytest.raises(PlacementError, match="WEIR_ROLLOUTS"):
            choose({"WEIR_ROLLOUTS": text}, devices)
    with pytest.raises(PlacementError, match="shows none"):
        choose({"WEIR_GPUS": WISH, "CUDA_VISIBLE_DEVICES": ""}, eight)


def test_cuda_shows_nothing_after_a_name_that_is_none() -> None:
    for listed, names in (("2,-1,3", ("2",)), ("none", ()), ("GPU-a1,x", ("GPU-a1",))):
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, []) == names
    with pytest.raises(PlacementError, match="lists 1 twice"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "1,0,1"}, [])


def test_heads_decide_how_an_engine_can_be_split() -> None:
    splits = {(4, 28, 4): True, (8, 28, 4): False, (8, 32, 4): True, (3, 12, 4): False}
    assert {heads: split_problem(*heads) is None for heads in splits} == splits


def a_node(address: str, gpus: int, *names: str, alive: bool = True) -> dict[str, Any]:
    """As `ray.nodes` tells of one."""
    named = {f"node:{name}": 1.0 for name in (*names, address, "__internal_head__")}
    return {
        "Alive": alive,
        "NodeManagerAddress": address,
        "Resources": {"CPU": 8.0, **({"GPU": float(gpus)} if gpus else {}), **named},
    }


CLUSTER = [a_node("10.0.0.1", 4), a_node("10.0.0.2", 4, "b"), a_node("10.0.0.9", 8, alive=False)]


def test_a_node_goes_by_its_address_and_by_its_given_names() -> None:
    for name in ("10.0.0.2", "b"):
        placement = choose_for_cluster(
            CLUSTER, {"WEIR_GPUS": f"learner=10.0.0.1:0-3 rollout={name}:0-3"}
        )
        assert placement.rollouts[0].node == name


@table("""
    line                               | words
    learner=b:0-3 rollout=10.0.0.9:0   | there is no node
    learner=b:0-3 rollout=10.0.0.1:0-5 | 10.0.0.1:4 does not exist
    learner=b:0-3 rollout=10.0.0.1:0,1 | no service has GPU 10.0.0.1:2-3
    learner=0 rollout=0@0.4            | can be shared
""")
def test_what_a_cluster_does_not_have_is_told(line: str, words: str) -> None:
    with pytest.raises(PlacementError, match=words):
        choose_for_cluster(CLUSTER, {"WEIR_GPUS": line})


def test_a_cluster_without_a_line_is_divided() -> None:
    assert str(choose_for_cluster(CLUSTER, {})).startswith(
        "learner=10.0.0.1:0-3 rollout=b:0 rollout=b:1"
    )
    with pytest.raises(PlacementError, match="can be shared"):
        choose_for_cluster([a_node("10.0.0.1", 1)], {})
    on_cpus = choose_for_cluster([a_node("10.0.0.1", 0)], {"WEIR_ROLLOUTS": "2"})
    assert (on_cpus.uses_gpus, len(on_cpus.rollouts)) == (False, 2)


def test_a_process_takes_its_gpus_of_its_node_and_graders_take_none() -> None:
    placement = parse("learner=a:0-3,b:0-3 rollout=b:4,5")
    variables = {"WEIR_GRADERS": "2", "WEIR_ENVIRONMENTS": "0"}
    by_name = {launch.name: launch for launch in stack_launches(placement, {}, variables)}
    names = "gateway grader-0 grader-1 rollout-0 learner-0 learner-1"
    assert set(by_name) == set(names.split())
    assert ray_resources(by_name["learner-1"]) == {"CPU": 4, "GPU": 4, "node:b": 0.001}
    assert ray_resources(by_name["grader-0"]) == {"CPU": 1}
    assert "CUDA_VISIBLE_DEVICES" not in by_name["rollout-0"].environment, "Ray chooses"


def test_what_computes_is_as_nice_as_it_is_told() -> None:
    placement = parse("learner=a:0 rollout=a:1")
    launches = stack_launches(placement, {}, {"WEIR_NICENESS": "3"})
    # The gateway keeps 0.
    assert {launch.niceness for launch in launches} == {0, 3}
    with pytest.raises(PlacementError, match="WEIR_NICENESS"):
        list(stack_launches(placement, {}, {"WEIR_NICENESS": "20"}))


def test_processes_of_a_cluster_get_what_the_driver_has_but_no_secret_and_no_path_to_one() -> None:
    driver = {"WEIR_API_KEYS_FILE": "/mine", "HF_TOKEN": "t", "EDITOR": "vi", "NCCL_DEBUG": "INFO"}
    driver |= {"WEIR_REDIS_URL": "redis://:p@h", "LAB": "7", "WEIR_INHERIT": "LAB"}
    shared = cluster_variables(driver, parse("learner=a:0 rollout=a:1"))
    assert (shared["NCCL_DEBUG"], shared["LAB"]) == ("INFO", "7")
    assert not {"WEIR_API_KEYS_FILE", "HF_TOKEN", "WEIR_REDIS_URL", "EDITOR"} & set(shared)
