package orlop

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// diskParsers are the functions that parse the content of disks. Each has the form PACKAGE.NAME.
var diskParsers = []string{
	"diskprobe.Examine", "superblock.Examine", "superblock.FATFile", "superblock.FATHas", "superblock.Identify",
	"superblock.ISOFile", "superblock.ReadExt", "superblock.Unfinished", "parttable.Read", "diskkey.ReadHeader",
}

// diskReaders are the files of PID 1 that may call diskParsers, with the permitted calls and the
// reason. The process of pkg/diskprobe, called the child, parses all other content of disks (0048).
var diskReaders = map[string]struct{ calls, reason string }{
	"machined/disk/read_linux.go":       {"parttable.Read superblock.Identify superblock.ReadExt superblock.Unfinished", "the boot disk's table, and the superblocks of its Orlop partitions"},
	"machined/disk/encryption_linux.go": {"diskkey.ReadHeader", "the headers of the boot disk's encrypted partitions (0127)"},
	"machined/disk/table_linux.go":      {"parttable.Read", "the boot disk's table before a change"},
	"machined/volumes/ops_linux.go":     {"parttable.Read", "the table of a disk on which the child has found nothing but the machine's own partitions, before a change (0104)"},
	"machined/volumes/wipe_linux.go":    {"parttable.Read", "the table of such a disk, before a partition is removed"},
	"init/disk_linux.go":                {"parttable.Read", "the tables of the disks with a partition ROOT-…, to find the root"},
	"pkg/diskprobe/examine_linux.go":    {"parttable.Read superblock.Examine superblock.FATFile superblock.FATHas superblock.ISOFile superblock.Identify", "the file is code of the child"},
	"pkg/diskprobe/child_linux.go":      {"Examine", "the file starts the parser in the child"},
}

// TestForeignDisks checks that PID 1 parses the content of disks only in the files of diskReaders.
// So only the child parses foreign disks.
func TestForeignDisks(t *testing.T) {
	found := map[string][]string{}
	for _, files := range linked(t, firstProcesses) {
		for _, f := range files {
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				switch of := call.Fun.(type) {
				case *ast.SelectorExpr:
					if pkg, ok := of.X.(*ast.Ident); ok && slices.Contains(diskParsers, pkg.Name+"."+of.Sel.Name) {
						found[f.path] = append(found[f.path], pkg.Name+"."+of.Sel.Name)
					}
				case *ast.Ident: // other packages with parsers may call their own functions
					if f.pkg == "pkg/diskprobe" && of.Name == "Examine" {
						found[f.path] = append(found[f.path], of.Name)
					}
				}
				return true
			})
		}
	}
	for file, calls := range found {
		slices.Sort(calls)
		if got := strings.Join(slices.Compact(calls), " "); got != diskReaders[file].calls {
			t.Errorf("%s calls %s; allowed are %q: parse the content of disks in pkg/diskprobe", file, got, diskReaders[file].calls)
		}
	}
	for file := range diskReaders {
		if len(found[file]) == 0 {
			t.Errorf("%s is in diskReaders, but calls none of diskParsers", file)
		}
	}
}
