// Package tagged is wrong under a build tag.
package tagged
