"""Stage II: the two reward models, R_seq (scores a patch) and R_line (scores its spans), their data, training and serving."""
