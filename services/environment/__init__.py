"""Episodes: responses of several turns, played in environments through the gateway."""
