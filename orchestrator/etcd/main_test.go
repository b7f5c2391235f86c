package etcd

import (
	"flag"
	"os"
	"runtime"
	"testing"
)

// TestMain runs at least four tests at a time, also on fewer processors: the tests of members wait
// for timers of etcd, the longest for a minute, and use few CPU seconds.
func TestMain(m *testing.M) {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 4 {
		if err := flag.Set("test.parallel", "4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
