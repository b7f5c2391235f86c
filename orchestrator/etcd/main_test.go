package etcd

import (
	"flag"
	"os"
	"runtime"
	"testing"
)

// TestMain runs at least four tests at a time, even on fewer processors. The tests of etcd members
// mostly wait for timers of etcd, for up to a minute, and use little CPU time.
func TestMain(m *testing.M) {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 4 {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
