"""Two threads: one computes, one sleeps."""

import threading
import time

totals: list[int] = []


def square_sum(count: int) -> int:
    return sum(i * i for i in range(count))


def work() -> None:
    totals.extend(square_sum(200_000) for _ in range(20))


def sleep() -> None:
    time.sleep(0.5)


threads = [threading.Thread(target=work, name="worker"), threading.Thread(target=sleep)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("total", sum(totals))
