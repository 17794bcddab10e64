package report

// Plot draws the distributions.
func Plot(*Report) []byte { return nil }
