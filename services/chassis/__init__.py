"""What every service bolts onto: where it runs, its health, its metrics, its work loop."""
