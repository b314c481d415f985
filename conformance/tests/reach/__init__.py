"""Views that leave the process, by the engines that carry them."""
