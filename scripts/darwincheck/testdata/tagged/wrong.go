//go:build wrong

package tagged

var number int = "one"
