package collect

import "path"

// Known is what was put into a working folder before its program was started, which
// does not come back unchanged. What is unchanged is told by the content: a program
// can set every time of a file, and writes through mmap(2) on a tmpfs change none.
// The methods are for one goroutine at a time.
type Known struct {
	key     key
	files   map[string]*File
	folders map[string]bool
}

// NewKnown returns a Known of nothing.
func NewKnown() *Known {
	return &Known{key: newKey(), files: map[string]*File{}, folders: map[string]bool{}}
}

// Folder puts down the folder name, and those above it.
func (k *Known) Folder(name string) {
	for ; name != "." && !k.folders[name]; name = path.Dir(name) {
		k.folders[name] = true
	}
}

// File puts down the file name, and the folders above it. Its content is what is
// then written to the File.
func (k *Known) File(name string, executable bool) *File {
	f := &File{executable: executable, hash: hash{key: k.key}}
	k.files[name] = f
	k.Folder(path.Dir(name))
	return f
}

// File takes the content of one file of a Known.
type File struct {
	executable bool
	bytes      int64
	hash       hash
}

// Write implements io.Writer. It does not fail.
func (f *File) Write(b []byte) (int, error) {
	f.bytes += int64(len(b))
	return f.hash.Write(b)
}
