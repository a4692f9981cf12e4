"""Two processes of `multiprocessing`; the children do the work."""

import multiprocessing


def square_sum(count: int) -> int:
    return sum(i * i for i in range(count))


def work(count: int) -> int:
    return sum(square_sum(count) for _ in range(10))


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print("total", sum(pool.map(work, [200_000, 200_000], chunksize=1)))
