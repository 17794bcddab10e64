package outputs

import "golang.org/x/sys/unix"

// renameNew is rename(2) that replaces nothing.
func renameNew(fromDir int, from string, toDir int, to string) error {
	return unix.RenameatxNp(fromDir, from, toDir, to, unix.RENAME_EXCL)
}
