package paths

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

// TestReleasedPaths checks that each path below STATE and DATA of version 0.1.0 is the value of a
// constant of this package.
func TestReleasedPaths(t *testing.T) {
	positions := token.NewFileSet()
	file, err := parser.ParseFile(positions, "paths.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := new(types.Config).Check("paths", positions, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var present []string
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok && c.Val().Kind() == constant.String {
			present = append(present, constant.StringVal(c.Val()))
		}
	}
	released := strings.Fields(string(releasedtest.Read(t, "paths.txt")))
	if len(released) < 20 {
		t.Errorf("only %d paths", len(released))
	}
	for _, path := range released {
		if !slices.Contains(present, path) {
			t.Errorf("version 0.1.0 stores data at %s, and no constant has this value; a rollback would not find the data", path)
		}
	}
}
