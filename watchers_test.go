package orlop

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// TestWatchersAdvance checks that a loop that waits for a watcher of package cell also reads the
// watcher.
// The channel of Watcher.Changed stays closed until Watcher.Current or Watcher.Next reads the new
// value, so a loop without the read never waits and takes a whole processor.
func TestWatchersAdvance(t *testing.T) {
	for _, f := range files(t) {
		if f.generated {
			continue
		}
		for _, d := range f.syntax.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				loop, ok := n.(*ast.ForStmt)
				if !ok {
					return true
				}
				for watcher, at := range unread(loop) {
					t.Errorf("%s: the loop waits for %s.Changed and never calls %s.Current", positions.Position(at), watcher, watcher)
				}
				return false // inner loops are not checked: the read can be in the outer loop
			})
		}
	}
}

// unread returns the watchers for which a loop waits without reading them. The value is the
// position of the wait.
func unread(loop ast.Node) map[string]token.Pos {
	waits, reads := map[string]token.Pos{}, map[string]bool{}
	ast.Inspect(loop, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.UnaryExpr: // <-watcher.Changed()
			call, ok := n.X.(*ast.CallExpr)
			if !ok || n.Op != token.ARROW {
				return true
			}
			if name, method := watcherCall(call); method == "Changed" {
				waits[name] = n.Pos()
			}
		case *ast.CallExpr:
			if name, method := watcherCall(n); method == "Current" || method == "Next" {
				reads[name] = true
			}
			for _, a := range n.Args { // a function that gets the watcher may read it
				if id, ok := a.(*ast.Ident); ok {
					reads[id.Name] = true
				}
			}
		}
		return true
	})
	for name := range reads {
		delete(waits, name)
	}
	return waits
}

// watcherCall returns the variable and the method of a call such as watcher.Changed().
func watcherCall(call *ast.CallExpr) (name, method string) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if id, ok := f.X.(*ast.Ident); ok {
		return id.Name, f.Sel.Name
	}
	return "", ""
}

// TestUnread checks the number of watchers that unread returns for a loop.
func TestUnread(t *testing.T) {
	for text, want := range map[string]int{
		"for { w.Current(); <-w.Changed() }":                                            0,
		"for { other.Current(); <-w.Changed() }":                                        1,
		"for { select { case <-w.Changed(): case <-v.Changed(): }; v.Current() }":       1,
		"for { if ok(w) { return }; <-w.Changed() }":                                    0,
		"for { v, _, err := w.Next(ctx); use(v, err); select { case <-w.Changed(): } }": 0,
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc f() { "+text+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(unread(parsed)); got != want {
			t.Errorf("%s: %d watchers without a read, want %d", text, got, want)
		}
	}
}
