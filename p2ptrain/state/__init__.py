"""The outer state in shared memory: θ and m, their layout, and the vectors lent to trainers."""
