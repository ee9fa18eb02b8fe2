"""The claims of PAPO, DAPO and VAPO, tested in miniature."""
