from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_aorta.triage.signatures import LONGEST, message_words

CASES = {
    # numbers
    "loss is nan": "loss is nan",
    "loss is 3.25e-07 at step 17": "loss is # at step #",
    "loss is -1": "loss is #",
    "took 3 of 10 s.": "took # of # s.",
    "Mismatched elements: 1 / 3 (33.3%)": "Mismatched elements: # / # (#%)",
    "code -11; 1_000 times": "code #; # times",
    "CUDA out of memory. Tried to allocate 20.00 MiB": "CUDA out of memory. Tried to allocate #",
    "CUDA out of memory. Tried to allocate 2 GiB": "CUDA out of memory. Tried to allocate #",
    # shapes, lists, as long as they are
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)": "mat1 and mat2 shapes cannot be multiplied (# and #)",
    "shape '[2, 3]' is invalid for torch.Size([4, 5, 6])": "shape '[#]' is invalid for torch.Size([#])",
    "bad shape (3,)": "bad shape (#)",
    "bad shape (3, 4)": "bad shape (#)",
    "[1., 2.] differs": "[#.] differs",
    # addresses and reprs
    "<torch.nn.Linear object at 0x7f2a81b3c5d0>": "<torch.nn.Linear object at #>",
    # ids
    "job 550e8400-e29b-41d4-a716-446655440000 lost": "job # lost",
    "digest 9f86d081884c7d65 differs": "digest # differs",
    "no file tmpa8x_2kd1": "no file #",
    # paths
    "No such file or directory: '/tmp/pytest-of-me/data.bin'": "No such file or directory: '<path>'",
    "cannot read ../data/shard-00012.tar": "cannot read <path>",
    "cannot read data/shard-00012.tar": "cannot read <path>",
    "cannot read C:\\data\\shard.tar": "cannot read <path>",
    "at https://example.org/a?b=1, try again": "at <url>, try again",
    "tcp://10.0.0.3:29500 refused": "<url> refused",
    # hosts, ports, ranks, devices, times
    "[/src/gloo/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242": (
        "[<path>:#] Connection closed by peer [#]:#"
    ),
    "peer [fe80::1]:7 gone": "peer [#]:# gone",
    "rank 3 failed, rank3 too": "rank # failed, rank# too",
    "tensors on cuda:0 and cuda:1": "tensors on cuda:# and cuda:#",
    "stopped at 2026-01-31T09:12:44.123Z": "stopped at #Z",
    "stopped at 2026-01-31 09:12:44": "stopped at #",
    "stopped at 09:12:44.123456": "stopped at #",
    "2026-01-31 09:12:44,123 [rank3]: out of ids": "out of ids",
    "pid 4711: killed": "pid #: killed",
    "lost 0000:c5:00.1": "lost #",
    "both on CUDA device e2000": "both on CUDA device #",
    "[n17:4711:0:4711] rc.c:177  retry count exceeded": "rc.c:# retry count exceeded",
    "no kernel for gfx1036, no sm_90": "no kernel for gfx1036, no sm_#",
    "srun: error: nid001277: task 0: Bus error": "srun: error: #: task #: Bus error",
    "no route to rack2gpu07<42830>": "no route to #",
    "peer gpu17b is gone, peer closed": "peer # is gone, peer closed",
    "node conv2d of the graph": "node conv2d of the graph",
    # one of several equal layers; a value beside what has failed
    "nan in layers.11.mlp, h.3.attn": "nan in layers.#.mlp, h.#.attn",
    "no loss after layer3, grad_norm=inf": "no loss after layer#, grad_norm=#",
    "loss is inf, not nan": "loss is inf, not nan",
    # codes
    "NVRM: Xid (PCI:0000:b3:00): 79, pid=4, name=python3, GPU has fallen off": "NVRM: Xid 79, GPU has fallen off",
    "CUDA error 719 after 12 steps": "CUDA error 719 after # steps",
    "ended with exit code 3": "ended with exit code 3",
    # what stays
    "'a'": "'a'",
    "expected scalar type Float but found Half": "expected scalar type Float but found Half",
    "expected float16, not float32": "expected float16, not float32",
    "no kernel for conv3d on gfx90a": "no kernel for conv3d on gfx90a",
    "n/a and/or tokens/s": "n/a and/or tokens/s",
    "c10::Error in at::native::mm": "c10::Error in at::native::mm",
    "HSA_STATUS_ERROR_OUT_OF_RESOURCES": "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    # one failure that libraries, and their versions, say in several ways
    **dict.fromkeys(
        (
            "free(): invalid pointer",
            "double free or corruption (!prev)",
            "malloc(): corrupted top size",
            "corrupted size vs. prev_size",
            "*** Error in `python': free(): invalid next size (fast): 0x01 ***",
        ),
        "heap corruption",
    ),
    **dict.fromkeys(
        (
            "NCCL error in: b.cpp:12, internal error - please report this issue to the NCCL developers",
            "NCCL Error 3: internal error",
            "[Rank 3] NCCL watchdog thread terminated with exception: NCCL error: internal error, NCCL version 2.19",
            "[PG 0 (default_pg) Rank 3] Watchdog thread terminated with exception: NCCL error: internal error",
        ),
        "NCCL: internal error",
    ),
    **dict.fromkeys(
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
            "RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.",
            "RESOURCE_EXHAUSTED: Failed to allocate request for 16.00GiB (17179869184B) on device ordinal 0",
        ),
        "RESOURCE_EXHAUSTED: out of memory",
    ),
    **dict.fromkeys(
        (
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n, k)`",
            "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
            "cublas error: CUBLAS_STATUS_EXECUTION_FAILED",
        ),
        "CUBLAS_STATUS_EXECUTION_FAILED",
    ),
    **dict.fromkeys(
        (
            ":0:rocdevice.cpp :2786: 123 us: [pid:4 tid:0x7f] Callback: Queue 0x7f aborting with error : "
            "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory. code: 0x29",
            "Queue error - HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
        ),
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    ),
    # several failures behind one opening
    "backend='inductor' raised:\nAssertionError: -1 not in sizes\n\nSet TORCH_LOGS": (
        "backend='inductor' raised: AssertionError: # not in sizes"
    ),
    "backend='inductor' raised:\nCppCompileError: C++ compile error": (
        "backend='inductor' raised: CppCompileError: C++ compile error"
    ),
    # which line
    "": "",
    "\n\n  Not equal to tolerance rtol=1e-07, atol=0\n\nx": "Not equal to tolerance rtol=#, atol=#",
    "NCCL error in: a/b.cpp:12, internal error, NCCL version 2.1\nncclX\nLast error:\nno fd 7": (
        "NCCL: internal error: no fd #"
    ),
    "CUDA error: an illegal memory access\nCompile with ...": "CUDA error: an illegal memory access",
    "Caught KeyError in worker 0.\nOriginal Traceback (most recent call last):\n  ...\nKeyError: 'a'": "KeyError: 'a'",
    # hostile
    "\x1b[31mred\x1b[0m \x1b]0;title\x07\ttext \udcff\x00": "red text \ufffd\ufffd",
}


def test_what_stays_of_a_message() -> None:
    for message, words in CASES.items():
        assert message_words(message) == words


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("lost n17", "lost #"),
        ("lost n4 and n12.cluster.example.", "lost # and #."),
        ("lost n, an17 and n1b", "lost n, an17 and n1b"),
    ],
)
def test_hosts_that_are_named_as_this_one_are_numbers(message: str, words: str) -> None:
    assert message_words(message, "n17.cluster.example") == words


WORDS = st.lists(
    st.from_regex(r"[A-Za-z]{3,8}", fullmatch=True).filter(lambda word: not re.fullmatch("tmp.*|[a-fA-F]*", word)),
    min_size=1,
    max_size=5,
)
HEX = "0123456789abcdef"
PATHS = st.lists(st.from_regex(r"[\w.-]{1,12}", fullmatch=True), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)
IDS = st.one_of(
    st.uuids().map(str),
    st.text(HEX, min_size=12, max_size=40).filter(lambda text: not text.isdecimal() and not text.isalpha()),
)


NUMBERS = st.one_of(st.integers().map(str), st.floats(allow_nan=False, allow_infinity=False).map(str))
ADDRESSES = st.integers(min_value=0).map(hex)
TIMES = st.one_of(st.datetimes().map(str), st.datetimes().map(lambda at: at.isoformat()), st.times().map(str))


@pytest.mark.parametrize("kind", [NUMBERS, ADDRESSES, PATHS, IDS, TIMES])
@settings(max_examples=25, deadline=None)
@given(st.data(), WORDS, st.sampled_from(["{}", "'{}'", "({})", "<{}>", "{}: "]))
def test_one_in_place_of_another_changes_nothing(
    kind: st.SearchStrategy[str], data: st.DataObject, words: list[str], around: str
) -> None:
    def message() -> str:
        return " ".join(f"{word} {around.format(data.draw(kind))}" for word in words)

    assert message_words(message()) == message_words(message())


@given(st.text(max_size=300))
def test_any_text_becomes_one_short_printable_line(text: str) -> None:
    words = message_words(text)
    assert words.isprintable()
    assert len(words) <= LONGEST
    assert message_words(words) == words or words.endswith("\N{HORIZONTAL ELLIPSIS}")
