"""The page as files for any static web host: the page, its data, a badge, and the signed head."""
