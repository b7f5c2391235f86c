package orlop

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

// firstProcesses are the programs that run as PID 1: an unrecovered panic in them resets the
// machine (docs/decisions/0059-panics.md).
var firstProcesses = []string{"machined", "init"}

// unguarded are the functions that may start a goroutine without recovery of panics, as "PACKAGE
// FUNCTION", with the reason. In a reason, "it" is the goroutine.
var unguarded = map[string]string{
	"machined main":                      "the reaper, without which no process ends; the boot, each step of which is guarded; the watchdog feeder, the end of which resets the machine",
	"machined/power WatchdogDeps.alive":  "its end resets the machine",
	"machined/power WatchdogFeeder.Run":  "its end resets the machine",
	"machined/power Controller.Shutdown": "its end resets the machine, which shuts down in any case",
	"machined/power Machine.Shutdown":    "a timer that resets the machine",
	"machined stepAPI":                   "its end resets the machine",
	"machined/timesync Run":              "it waits for another list of servers, and compares the lists",
	"pkg/supervise Manager.start":        "the supervisor of services: all other tasks depend on it",
	"pkg/supervise Manager.setTimer":     "the supervisor of services",
	"pkg/limits Bounded.start":           "it changes two counters",
	"pkg/panics Restarter.Go":            "the guard itself",
	"pkg/service/profile FromEnv":        "it runs in the processes of services only, which are restarted",
	"init boot":                          "a timer that resets the machine",
	"apid Serve":                         "it runs in the process apid, which is restarted",
	"apid watcher.run":                   "it runs in the process apid",
	"apid stopServer":                    "it runs in the process apid, which ends",
	"apid store.registerConn":            "it runs in the process apid; it closes a connection",
}

// safeCalls are the names, without package and receiver, of functions that a goroutine may call
// without recovery of panics. They end contexts, close files, set deadlines, count, or wait.
var safeCalls = []string{
	"WithCancel", "WithTimeout", "cancel", "stop", "end", "Done", "Err", "Cause", "Close", "SetDeadline", "SetReadDeadline", "Now", "Add", "After", "Wait", "Load", "Lock", "Unlock",
	"close", "make", "len", "string", "byte", "Error", "Errorf", "Is", "Or", "Unix", "LockOSThread", "release", "done", "Join", "CloseWithError",
}

// TestGoroutines checks that each goroutine of PID 1 recovers panics, except in the functions of
// unguarded. It reads each package that machined and init link.
func TestGoroutines(t *testing.T) {
	packages := linked(t, firstProcesses)
	used := map[string]bool{}
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		p := sources{functions: map[string][]*ast.FuncDecl{}}
		for _, f := range packages[pkg] {
			p.add(f)
		}
		p.each(func(where string, code ast.Node) {
			if p.guarded(code, 0) {
				return
			}
			name := pkg + " " + where
			if used[name] = true; unguarded[name] == "" {
				t.Errorf("%s: %s starts a goroutine; a panic in it resets the machine: start it with package panics", positions.Position(code.Pos()), name)
			}
		})
	}
	for name := range unguarded {
		if !used[name] {
			t.Errorf("%s: remove it from unguarded; it starts no goroutine without recovery", name)
		}
	}
}

// TestGuarded checks the result of guarded for each way to start a goroutine.
func TestGuarded(t *testing.T) {
	for code, want := range map[string]bool{
		`go work()`:                       false,
		`go whole()`:                      true,
		`go partly()`:                     false,
		`go other.Work()`:                 false,
		`go func() { work() }()`:          false,
		`go func() { whole(); work() }()`: false,
		`go func() { defer close(done); _ = panics.Do("a", work); done <- nil }()`: true,
		`go func() { err := panics.Do("a", work); if err != nil { work() } }()`:    false,
		`go func() { defer func() { recover() }(); work() }()`:                     true,
		`go func() { defer wg.Done(); restarter.Run(ctx, "a", work) }()`:           true,
		`go func() { c.Run(ctx) }()`:                                               false,
		`go panics.Guarded("a", work)()`:                                           true,
		`wg.Go(work)`:                                                              false,
		`wg.Go(panics.Guarded("a", work))`:                                         true,
		`time.AfterFunc(d, func() { conn.Close() })`:                               true,
		`time.AfterFunc(d, func() { work() })`:                                     false,
		`context.AfterFunc(ctx, cancel)`:                                           true,
		`context.AfterFunc(ctx, work)`:                                             false,
		`panics.Go("a", func() { go work() })`:                                     false,
		`panics.Go("a", work)`:                                                     true,
		`restarter.Go(ctx, "a", work)`:                                             true,
		`go func() { func() { work() }() }()`:                                      false,
		`go func() { each(func() { work() }) }()`:                                  false,
	} {
		src := "package p\nfunc f() {" + code + "}\nfunc work() { x[i]() }\nfunc whole() { _ = panics.Do(`a`, work) }\nfunc partly() { whole(); work() }"
		parsed, err := parser.ParseFile(token.NewFileSet(), "p.go", src, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p := sources{functions: map[string][]*ast.FuncDecl{}}
		p.add(file{syntax: parsed})
		got := true
		p.each(func(_ string, code ast.Node) { got = got && p.guarded(code, 0) })
		if got != want {
			t.Errorf("%s: guarded returns %t", code, got)
		}
	}
}

// linked returns the files of the programs and of all packages of this module that the programs
// import, directly or not. The key is the package.
func linked(t *testing.T, programs []string) map[string][]file {
	t.Helper()
	all := map[string][]file{}
	for _, f := range files(t) {
		if !f.test {
			all[f.pkg] = append(all[f.pkg], f)
		}
	}
	out := map[string][]file{}
	for next := slices.Clone(programs); len(next) > 0; next = next[1:] {
		if _, known := out[next[0]]; known {
			continue
		}
		if out[next[0]] = all[next[0]]; len(all[next[0]]) == 0 {
			t.Fatalf("package %s has no files", next[0])
		}
		for _, f := range all[next[0]] {
			for _, i := range f.imports {
				if to, ours := strings.CutPrefix(i+"/", module+"/"); ours {
					next = append(next, strings.TrimSuffix(to, "/"))
				}
			}
		}
	}
	return out
}

// sources are the declarations of a package.
type sources struct {
	decls     []ast.Decl
	functions map[string][]*ast.FuncDecl // by name, without the receiver
}

func (p *sources) add(f file) {
	for _, d := range f.syntax.Decls {
		p.decls = append(p.decls, d)
		if f, ok := d.(*ast.FuncDecl); ok {
			p.functions[f.Name.Name] = append(p.functions[f.Name.Name], f)
		}
	}
}

// each calls the function do for all code of the package that runs on a new goroutine. The argument
// where is the name of the function that starts the goroutine.
func (p *sources) each(do func(where string, code ast.Node)) {
	for _, d := range p.decls {
		where := "(package level)"
		if f, ok := d.(*ast.FuncDecl); ok {
			where = f.Name.Name
			if f.Recv != nil {
				where = receiver(f.Recv.List[0].Type) + "." + where
			}
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if code := onGoroutine(n); code != nil {
				do(where, code)
			}
			return true
		})
	}
}

// onGoroutine returns the code that n runs on a new goroutine: the call of a go statement, or the
// argument of a method Go (for example of sync.WaitGroup) or of AfterFunc (packages time and
// context). For all other nodes it returns nil.
func onGoroutine(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.GoStmt:
		return n.Call
	case *ast.CallExpr:
		f, ok := n.Fun.(*ast.SelectorExpr)
		switch {
		case !ok:
		// panics.Go and Restarter.Go have more arguments. They are not returned, because they
		// recover panics.
		case f.Sel.Name == "Go" && len(n.Args) == 1:
			return n.Args[0]
		case f.Sel.Name == "AfterFunc" && len(n.Args) == 2:
			return n.Args[1]
		}
	}
	return nil
}

// maxCalls is the largest depth of calls that guarded follows. It follows only functions of the
// same package.
const maxCalls = 2

// guarded reports whether all panics in this code are recovered. depth is the number of calls that
// led to the code.
func (p *sources) guarded(code ast.Node, depth int) bool {
	switch n := code.(type) {
	case *ast.CallExpr: // the call of a go statement, or panics.Guarded as an argument
		return recovers(n) || p.guarded(n.Fun, depth)
	case *ast.FuncLit:
		return p.body(n.Body, depth)
	case *ast.Ident, *ast.SelectorExpr:
		name := lastName(n)
		if slices.Contains(safeCalls, name) {
			return true
		}
		all := p.functions[name]
		return len(all) > 0 && depth < maxCalls && !slices.ContainsFunc(all, func(f *ast.FuncDecl) bool { return !p.body(f.Body, depth+1) })
	}
	return false
}

// body reports whether a function is safe on a goroutine: it begins with a deferred recover, or
// each of its calls is guarded.
func (p *sources) body(b *ast.BlockStmt, depth int) bool {
	if len(b.List) > 0 {
		if d, ok := b.List[0].(*ast.DeferStmt); ok && callsRecover(d) {
			return true
		}
	}
	good := true
	ast.Inspect(b, func(n ast.Node) bool {
		switch n := n.(type) {
		// TestGoroutines checks a go statement by itself. A function literal is checked where it is
		// called.
		case *ast.GoStmt, *ast.FuncLit:
			return false
		case *ast.CallExpr:
			if onGoroutine(n) != nil || recovers(n) {
				return false
			}
			good = good && p.guarded(n.Fun, depth)
		}
		return good
	})
	return good
}

// recovers reports whether a call runs its arguments with recovery of panics. This is true for the
// functions of package panics, and for Restarter.Run.
func recovers(n *ast.CallExpr) bool {
	f, ok := n.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, _ := f.X.(*ast.Ident)
	return from != nil && from.Name == "panics" || f.Sel.Name == "Run" && strings.HasSuffix(strings.ToLower(lastName(f.X)), "restarter")
}

func callsRecover(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && lastName(call.Fun) == "recover"
		return !found
	})
	return found
}

// lastName returns the name of a function without package or receiver.
func lastName(n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.SelectorExpr:
		return n.Sel.Name
	case *ast.CallExpr:
		return lastName(n.Fun)
	}
	return ""
}
