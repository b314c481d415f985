"""Every route with one thing failing: an allocation, a driver call, a function that the driver lacks."""
