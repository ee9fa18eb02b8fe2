"""Episodes: responses of several turns, played in environments against the model door."""
