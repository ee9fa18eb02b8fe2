"""What every request passes on its way in."""
