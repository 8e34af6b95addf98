"""Prime factors of lengths: FFT libraries are fast if all of them are small."""


def has_prime_above(n: int, largest: int) -> bool:
    """Return whether `n` has a prime factor above `largest`."""
    for factor in range(2, largest + 1):
        while n % factor == 0:
            n //= factor
    return n > 1
