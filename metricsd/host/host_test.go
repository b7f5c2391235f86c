package host

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/golden"
)

// sample returns the Source of the files in testdata.
func sample() Source {
	return Source{
		proc: "testdata/proc", sys: "testdata/sys", now: func() time.Time { return time.Unix(1790000100, 0) },
		usage: func(at string) (usage, error) {
			if strings.HasSuffix(at, "/gone") {
				return usage{}, errors.New("no such device")
			}
			return usage{size: 4096000, free: 2048000, available: 1024000, files: 1000, filesFree: 900, readOnly: at == "/"}, nil
		},
	}
}

// ofThisComputer matches the lines that depend on the computer that runs the test.
var ofThisComputer = regexp.MustCompile(`(?m)^(node_uname_info).*\n|^(node_sockstat_\w+_mem_bytes) .*\n`)

// TestRead compares all metrics of a machine with the golden files.
func TestRead(t *testing.T) {
	read := sample().Read()
	var text bytes.Buffer
	if err := read.Write(&text); err != nil {
		t.Fatal(err)
	}
	golden.Assert(t, ofThisComputer.ReplaceAllString(text.String(), "$1$2 (of this computer)\n"), "metrics.txt")
	golden.Assert(t, strings.Join(read.Names(), "\n")+"\n", "names.txt")
	if failed := regexp.MustCompile(`success\{.*\} 0`).FindAllString(text.String(), -1); failed != nil {
		t.Errorf("collectors have failed: %q", failed)
	}
}

// TestBroken checks that a missing file affects only the collectors that read it.
func TestBroken(t *testing.T) {
	s := sample()
	s.proc = t.TempDir()
	var text bytes.Buffer
	if err := s.Read().Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`node_scrape_collector_success{collector="cpu"} 0`, `node_scrape_collector_success{collector="time"} 1`, "node_time_seconds 1.7900001e+09"} {
		if !strings.Contains(text.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

// TestSystem reads the computer that runs the test, and checks metrics that every Linux computer
// has.
func TestSystem(t *testing.T) {
	read := System().Read()
	names := strings.Join(read.Names(), "\n")
	for _, want := range []string{"node_cpu_seconds_total", "node_memory_MemAvailable_bytes", "node_filesystem_size_bytes", "node_network_receive_bytes_total", "node_uname_info"} {
		if !strings.Contains(names, want) {
			t.Errorf("no %s in\n%s", want, names)
		}
	}
}
