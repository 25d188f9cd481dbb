"""Programs that measure the page's process."""
