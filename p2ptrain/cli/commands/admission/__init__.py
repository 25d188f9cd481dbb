"""Commands about who takes part: `invite`, `join`, `peers`, and `allow`, their older form."""
