// Package loop runs a program, shows a model how it failed, and runs what the model
// makes of it, until it works or one of the budgets is spent. The model gives code for
// the next box and nothing else: what is run with which limits was decided before. It
// reads no flags, shows nothing to a person, and knows no provider.
package loop
