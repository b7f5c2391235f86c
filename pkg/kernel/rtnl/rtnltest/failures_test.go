package rtnltest

import "testing"

func TestFailures(t *testing.T) {
	const out = `=== RUN   TestA
=== RUN   TestA/one
    x_test.go:3: fine
=== RUN   TestA/two
    x_test.go:3: not so
=== RUN   TestA/two/deep
    x_test.go:3: deep
=== RUN   TestA/three
=== NAME  TestA
    x_test.go:3: the end
--- FAIL: TestA (0.00s)
    --- PASS: TestA/one (0.00s)
    --- FAIL: TestA/two (0.00s)
        --- FAIL: TestA/two/deep (0.00s)
    --- PASS: TestA/three (0.00s)
FAIL`
	const want = `TestA:
    x_test.go:3: the end
TestA/two:
    x_test.go:3: not so
TestA/two/deep:
    x_test.go:3: deep
`
	if got := failures(out); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
