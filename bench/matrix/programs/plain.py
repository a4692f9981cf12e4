"""One process and one thread; most of the time is spent in `square_sum`."""


def square_sum(count: int) -> int:
    return sum(i * i for i in range(count))


total = 0
for _ in range(20):
    total += square_sum(200_000)
print("total", total)
