"""A race: a thread unpacks the next batch while the device computes, and the program never joins that thread.

It rarely fails on two idle cores. ``pytest-aorta amplify -- python examples/race/train.py`` looks for a condition under
which it fails more often.
"""

import random
import threading
import time
import zlib

PACKED = zlib.compress(random.Random(1).randbytes(1 << 16) * 320)
buffers = [b"", b""]


def load(number: int) -> None:
    buffers[number % 2] = zlib.decompress(PACKED)


def processor_time_of(number: int) -> float:
    buffers[number % 2] = b""
    begun = time.process_time()
    load(number)
    return time.process_time() - begun


of_a_load = max(processor_time_of(number) for number in range(5))
for step in range(10):
    loader = threading.Thread(target=load, args=(step + 1,))
    loader.start()
    batch, buffers[step % 2] = buffers[step % 2], b""
    if not batch:
        raise SystemExit(f"step {step}: an empty batch")
    time.sleep(2 * of_a_load)  # the device computes
    print(f"step {step} loss {len(batch) / (step + 1):.1f}", flush=True)
