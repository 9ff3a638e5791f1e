"""What a line of output says by itself: a number inside of a token, a NaN, and what libraries print when they fail."""

from __future__ import annotations

import re
from itertools import islice

from pytest_aorta.common.texts import ESCAPES

#: A number, as Python, C (also Microsoft's), JavaScript and pandas write it.
_NOT_FINITE = r"(?:nan(?:\((?:ind|snan|q?nan)\))?|inf(?:inity)?|1\.#(?:q?nan|snan|ind|inf)\d*|\N{INFINITY})"
_NUMBER = re.compile(
    r"(?:[a-z_][\w.]*[=:(\[]|[\s,;:()\[\]{}'\"*|<>~=$`\N{BOX DRAWINGS LIGHT VERTICAL}])*"
    rf"(?P<number>[-+]?(?:{_NOT_FINITE}|(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?))"
    r"(?P<unit>%|[mun\u00b5]?s|sec|x|it/s|[kmgt]i?b(?:/s)?)?"
    r"(?:(?:[\s;()\[\]{}'\"*|<>~`%\N{BOX DRAWINGS LIGHT VERTICAL}\N{FULL BLOCK}]|[.,:](?!\d)).*)?",
    re.IGNORECASE | re.DOTALL,
)


def plain_line(line: str) -> str:
    """A line without colours and other commands to a terminal."""
    return ESCAPES.sub("", line) if "\x1b" in line else line


def number(text: str) -> int | float | None:
    """The number in a token, whatever is around it: ``0.5,``, ``50%``, ``12ms``, ``tensor(nan, device='cuda:0')``.

    ``None`` where it is none, or several: ``1.2.3``, ``3/10``.
    """
    found = _NUMBER.fullmatch(plain_line(text).strip())
    if found is None:
        return None
    digits = found["number"].lower().replace("\N{INFINITY}", "inf")
    if re.fullmatch(r"[+-]?[0-9]{1,18}", digits):
        return int(digits)
    if "#" in digits or "nan" in digits:
        digits = f"{digits[0].strip('1')}inf" if "#inf" in digits else "nan"
    try:
        return float(digits)
    except ValueError:  # 1__0
        return None


#: A NaN or infinity that is no part of a word, a path, or the name of a function.
_TOKEN = re.compile(
    rf"(?<![\w\\#])(?<![a-z]\.)(?<![a-z~.]/)(?<![a-z]-)(?:[-+](?=\S))?({_NOT_FINITE}s?)(?:ms|s|%)?"
    r"(?![\w(\\#])(?!-[a-z])(?!\.[a-z_])(?!/(?!nan|inf)[a-z_.])",
    re.IGNORECASE,
)

#: What stands between a name, or the number before, and the number.
_WRAPPER = re.compile(
    r"(?:(?:\b(?:tensor|array|float\d*|bfloat16|double|half|np\.\w+|numpy\.\w+|torch\.\w+|parameter|scalar))?[\[({<]"
    r"|[\s\"'*`|~$\N{BOX DRAWINGS LIGHT VERTICAL}])+$",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(r"(?P<name>[\w.\-/ ()@\[\]]*?)[\"'*`)\]\s]*(?:[:=]|[-=]>|\N{RIGHTWARDS ARROW}|\u2248|\u00b1)$")

#: Words that are names of measured values, or end so.
MEASURED = re.compile(
    r"(?:loss|losses|ppl|perplexity|norms?|grads?|gradients?|acc|accuracy|err|errors?|mse|rmse|mae|lr|scores?|value|val"
    r"|train|test|mean|avg|average|std|var|nll|ce|kl|bp[bc]|elbo|rewards?|returns?|entropy|logits?|outputs?|psnr|ssim"
    r"|auc|bleu|scale|weights?|distance|diff|cost|objective|energy|residual|mfu|ratio|metric|delta|f1|checksum|max|min"
    r"|sum|perp|wer)\d*\)?$",
    re.IGNORECASE,
)

#: Names of options and bounds, which are infinite or missing on purpose.
_ON_PURPOSE = re.compile(
    r"best|min|max(?!.?(?:err|diff))|patience|limit|clip|norm_type|ord$|bound|thresh|mask|fill|missing|na_rep|policy"
    r"|default|timeout|initial|\bp$|bias|horizon|budget|until|level|lvl|severity|sentinel|padding|previous|prev\b|repr"
    r"|ttl|expires|deadline|range|window|cutoff",
    re.IGNORECASE,
)

#: What makes a NaN that is a word of a sentence a finding, and what takes it back.
_HAPPENED = re.compile(
    r"\b(?:is|was|were|are|be[ck]ame|becomes?|turned|went|got|returned|found|detected|detects|contains?|contained"
    r"|containing|produced|produces|encountered|hit|has|have|had|yields?|yielded|gave|equals?|reached|diverged|due"
    r"|because|saw|seen|overflow\w*|abort\w*|stopping|stopped|failed|error)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"(?:\b(?:zero|0)\s*$|\b(?:no|not|without|never|none|if|whether|check(?:s|ing|ed)?|when|unless|until|why|how|any|free"
    r"|(?:dis|en)abled?|would|could|may|might|can|should|skip(?:s|na)?|masks?|masking|masked|stop on|fail on|uses?"
    r"|(?:ignor|drop|replac|fill|remov|allow|treat|handl|guard|interpolat|imput|propagat|convert|support|test_)\w*"
    r"|nan_to_num|using|called|named)\b|n't\b|\bdetect_)",
    re.IGNORECASE,
)

#: After a number, another name, a unit, a sign, or the end.
_PROSE_AFTER = re.compile(
    r"[\"'`)]*[ \t]+(?:check(?:s|ing|er)?|values?|handling|policy|detect\w*|guards?|safe|mask\w*|entries|rows?|columns?"
    r"|counts?|cells|samples|in|or|and|are|is|was|were|found|will|would|should|during|as|at|by|from|to|with|for|on|after"
    r"|norm|hooks?|propagation|filter\w*|gradients?|losses|loss|grads?|inputs?|outputs?|tests?|support|before|weights"
    r"|of|free|tolerance|encountered|occurred|appeared|parameters?|tensors?)\b",
    re.IGNORECASE,
)


#: Characters before and after a number that say what it is.
_AROUND = 200

#: Numbers of a line that are looked at.
_LOOKED_AT = 100


def non_finite_in(line: str) -> bool:
    """Whether a line says that a value is NaN or infinite.

    A name and a number (``loss=nan``, ``loss nan``, ``[nan, 1.0]``), or a sentence (``Loss is nan, stopping``). Neither
    a part of a word (``nanoGPT``, ``info``), nor an option (``best: inf``), nor what is denied (``no NaN found``).
    """
    return any(_is_value(line, token) for token in islice(_TOKEN.finditer(line), _LOOKED_AT))


def _is_value(line: str, token: re.Match[str]) -> bool:
    before, after, text = line[max(0, token.start() - _AROUND) : token.start()], line[token.end() :][:_AROUND], token[1]
    infinite = text.lower().startswith("inf") or text == "\N{INFINITY}"
    if text.lower().endswith("s") or _PROSE_AFTER.match(after) or re.match(r"[\"']?\s*[=:]\s*\S", after):
        return _is_said(before, after, infinite)
    if text == "INF" and re.search(r"(?:^|[\d\])>|Z])\s*[\[(|]?$", before):  # the level of a log
        return False
    bare = _WRAPPER.sub("", before)
    assigned = _ASSIGNED.search(bare)
    if assigned is not None:
        name = assigned["name"].strip(" )]").rpartition("  ")[2]
        if infinite and bare.endswith(">"):
            return MEASURED.search(name) is not None
        return not _ON_PURPOSE.search(name[-40:]) and not (text == "Nan" and re.match(r" [A-Z]", after))
    if infinite and re.match(r"\s*(?:-+>|=>|\N{RIGHTWARDS ARROW}|to\b)", after):  # an improvement over nothing
        return False
    if not bare:
        return not infinite or not after.strip(" ])},;.0123456789")
    if re.search(r"[\d,/;\[({]$|(?:nan|inf)$", bare, re.IGNORECASE):
        return not (_ON_PURPOSE.search(bare) if infinite else _DENIED.search(bare[-40:]))
    word = bare.rpartition(" ")[2]
    if MEASURED.search(word) and not _DENIED.search(bare):
        return not (infinite and _ON_PURPOSE.search(bare[-40:]))
    return _is_said(before, after, infinite)


def _is_said(before: str, after: str, infinite: bool) -> bool:
    clause = re.split(r"[;!?]|\.\s", before)[-1]
    rest = re.split(r"[;!?]|\.\s", after)[0]
    if _DENIED.search(clause) or re.match(r"[\"']?\s*(?:[=:]\s*\S|-)", after):
        return False
    if infinite and re.search(r"\bfrom\s*$", before):
        return False
    return bool(_HAPPENED.search(clause[-60:]) or (_HAPPENED.search(rest) and not _DENIED.search(rest)))


#: What libraries print when they fail, by the name of what has happened; NaN has rules of its own.
_SAID = {
    "oom": r"out of memory|OutOfMemoryError|\bMemoryError\b|(?:can't|Cannot) allocate memory|not enough memory"
    r"|std::bad_alloc|RESOURCE_EXHAUSTED|MemoryAllocation\b|hipError_?OutOfMemory|STATUS_ALLOC_FAILED|oom-kill",
    "nccl": r"\b[NR]CCL error\b|\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b|\bncclInvalid(?:Usage|Argument)\b"
    r"|DistBackendError|[NR]CCL communicator (?:was|encountered|error)|Test [NR]CCL failure"
    r"|unhandled (?:system|cuda|hip) error",
    "hip-fault": r"hsa-runtime\b.*\bError code: [1-9]|Memory access fault by GPU|HSA_STATUS_ERROR|HW Exception by GPU"
    r"|\bHIP (?:runtime )?error\b|\bhipError_?(?!_?OutOfMemory)[A-Z]|VM_L2_PROTECTION_FAULT"
    r"|amdgpu.*(?:page fault|GPU reset|ring \S+ timeout)|GPU core dump|rocBLAS error"
    r"|HIPBLAS_STATUS_(?!SUCCESS)|MIOPEN.*Error\b",
    "cuda-error": r"\bCUDA (?:runtime |driver )?error\b|\bcudaError(?!MemoryAllocation)[A-Z]"
    r"|\bCUDA_ERROR_(?!OUT_OF_MEMORY)|CU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_(?!SUCCESS|ALLOC_FAILED)[A-Z]"
    r"|illegal memory access|device-side assert|\bXid \(PCI:",
    "watchdog": r"[Ww]atchdog (?:caught collective|thread terminated|got stuck)|ran for \d+ milliseconds before"
    r"|Heartbeat monitor timed out|monitoredBarrier|soft lockup|watchdog: BUG|hung_task_timeout"
    r"|blocked for more than \d+ s|Timed out waiting \d+ms for (?:recv|send)",
    "assert": r"Assertion [`'\"(].*failed|\bAssertionError\b|INTERNAL ASSERT FAILED|Assertion failed\b"
    r"|device-side assert|\bassert(?:ion)? failed\b",
}
_DETECTORS = {name: re.compile(pattern, re.IGNORECASE if name == "oom" else 0) for name, pattern in _SAID.items()}

#: In lower case; what a detector looks for is only in lines with one of these, which most lines are without.
_HINTS = {
    "nan": ("nan", "inf", "1.#", "\N{INFINITY}"),
    "oom": ("memory", "alloc", "oom-kill", "exhausted"),
    "nccl": ("ccl", "backenderror", "unhandled"),
    "hip-fault": ("hip", "hsa", "gpu", "l2_protection", "rocblas", "miopen"),
    "cuda-error": ("cuda", "_status_", "illegal memory", "device-side", "xid"),
    "watchdog": ("watchdog", "milliseconds", "heartbeat", "barrier", "lockup", "hung_task", "blocked for", "timed out"),
    "assert": ("assert",),
}

#: All names, in the order in which they are told.
DETECTORS = tuple(_HINTS)


def detected_in(line: str) -> list[str]:
    """Names of the detectors that find something in a line."""
    lower = line.lower()
    hinted = [name for name, hints in _HINTS.items() if any(hint in lower for hint in hints)]
    return [name for name in hinted if (non_finite_in(line) if name == "nan" else _DETECTORS[name].search(line))]
