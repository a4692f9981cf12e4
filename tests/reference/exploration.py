"""Correlated noise, one number at a time, straight from the definitions."""

import math

from hotloop.ops.noise import counter_normal


def white_numbers(seed, env, first_step, num_steps, size):
    """Return the standard normal numbers of a chunk, a list of `size` numbers for each step."""
    numbers = counter_normal(
        seed,
        first_step=first_step,
        num_steps=1,
        num_envs=1,
        first_env=env,
        size=num_steps * size,
        stream=2,
    )
    return numbers.reshape(num_steps, size).tolist()


def ornstein_uhlenbeck(noise, seed, env, episode_start, step, size):
    """Return x of a step as the sum over all earlier steps of its episode."""
    white = []
    while episode_start + len(white) <= step:
        first_step = episode_start + len(white)
        white += white_numbers(seed, env, first_step, noise.chunk_steps, size)
    sigma = noise.std * math.sqrt(1 - (1 - noise.theta) ** 2)
    last = step - episode_start
    return [
        sum(sigma * (1 - noise.theta) ** (last - t) * white[t][k] for t in range(last + 1))
        for k in range(size)
    ]


def pink(noise, seed, env, episode_start, step, size):
    """Return x of a step as a circular convolution with the filter's impulse response."""
    num_steps = noise.num_steps
    position = (step - episode_start) % num_steps
    white = white_numbers(seed, env, step - position, num_steps, size)
    response = [pink_response(t, num_steps) for t in range(num_steps)]
    energy = math.sqrt(sum(x * x for x in response))
    return [
        sum(
            noise.std * response[(position - t) % num_steps] / energy * white[t][k]
            for t in range(num_steps)
        )
        for k in range(size)
    ]


def pink_response(t, num_steps):
    """Return the sum of cosines of all frequencies 0 … n − 1, with amplitudes 1/√f."""
    total = 0.0
    for frequency in range(num_steps):
        distance = min(frequency, num_steps - frequency)  # aliases of negative frequencies
        total += math.cos(2 * math.pi * frequency * t / num_steps) / math.sqrt(max(distance, 1))
    return total
