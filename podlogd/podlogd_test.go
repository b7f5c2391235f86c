package podlogd

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	collector "go.opentelemetry.io/proto/otlp/collector/logs/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/otlp/otlptest"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bench is a directory of logs, and a fake of machined with one receiver.
type bench struct {
	t         *testing.T
	dir       string
	socket    *httptest.Server
	lines     []otlptest.Line // lines that the receiver has accepted
	answer    int             // HTTP status of the receiver; 200 if it accepts records
	positions []byte
	clock     time.Time // time of the last written line
}

func newBench(t *testing.T) *bench { return newBenchIn(t, t.TempDir()) }

// newBenchIn is newBench with an existing directory.
func newBenchIn(t *testing.T, dir string) *bench {
	b := &bench{t: t, dir: dir, answer: http.StatusOK, clock: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)}
	receiver := otlptest.Handler(func(request *collector.ExportLogsServiceRequest) (*collector.ExportLogsServiceResponse, int) {
		if b.answer == http.StatusOK {
			b.lines = append(b.lines, otlptest.Lines(request)...)
		}
		return &collector.ExportLogsServiceResponse{}, b.answer
	})
	mux := http.NewServeMux()
	mux.Handle("POST /archive/", http.StripPrefix("/archive", receiver))
	mux.HandleFunc("GET /archive/positions", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(b.positions) })
	mux.HandleFunc("PUT /archive/positions", func(_ http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		check(t, err)
		b.positions = text
	})
	b.socket = httptest.NewServer(mux)
	t.Cleanup(b.socket.Close)
	return b
}

// reader returns a reader that has loaded the stored positions.
func (b *bench) reader(settings nodespec.PodLogs) *reader {
	b.t.Helper()
	settings.Machine = "m1"
	if settings.LinesPerSecond == 0 {
		settings.LinesPerSecond = 1000
	}
	root, err := os.OpenRoot(b.dir)
	check(b.t, err)
	b.t.Cleanup(func() { _ = root.Close() }) // a read-only directory needs no check of Close
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, b.socket.Listener.Addr().String())
	}}}
	b.t.Cleanup(client.CloseIdleConnections)
	r := newReader(Options{Dir: b.dir, Settings: settings, Client: client, Log: slog.New(slog.DiscardHandler)}, root, "archive")
	check(b.t, r.load(b.t.Context()))
	return r
}

// deliver reads all lines, delivers them, and stores the positions.
func (b *bench) deliver(r *reader) {
	b.t.Helper()
	for more := true; more; {
		var err error
		more, err = r.pass(b.t.Context())
		check(b.t, err)
	}
	check(b.t, r.deliver(b.t.Context()))
	check(b.t, r.store(b.t.Context()))
}

// texts returns the texts of the delivered records by container, in order. The next call returns
// only newer records.
func (b *bench) texts() map[string][]string {
	all := map[string][]string{}
	for _, l := range b.lines {
		name := l.Pod["k8s.namespace.name"] + "/" + l.Pod["k8s.pod.name"] + "/" + l.Pod["k8s.container.name"]
		all[name] = append(all[name], l.Text)
	}
	b.lines = nil
	return all
}

// The method want compares the records of the container app/p/c since the last call of texts. step
// describes the step of the test in the failure message.
func (b *bench) want(step string, want ...string) {
	b.t.Helper()
	if got := b.texts()["app/p/c"]; !slices.Equal(got, want) {
		b.t.Errorf("%s: got %.300q; want %.300q", step, got, want)
	}
}

const container = "app_p_0a1b/c"

// write appends entries to a file of a container. Each entry is a millisecond later than the entry
// before.
func (b *bench) write(dir, name string, entries ...string) {
	b.t.Helper()
	check(b.t, os.MkdirAll(filepath.Join(b.dir, dir), 0o755))
	f, err := os.OpenFile(filepath.Join(b.dir, dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	check(b.t, err)
	for _, e := range entries {
		b.clock = b.clock.Add(time.Millisecond)
		_, err := fmt.Fprintf(f, "%s %s\n", b.clock.Format(time.RFC3339Nano), e)
		check(b.t, err)
	}
	check(b.t, f.Close())
}

// The function out returns entries of standard output with the texts "line FROM" to "line TO".
func out(from, to int) (entries []string) {
	for _, text := range numbered(from, to) {
		entries = append(entries, "stdout F "+text)
	}
	return entries
}

func numbered(from, to int) (texts []string) {
	for n := from; n <= to; n++ {
		texts = append(texts, fmt.Sprint("line ", n))
	}
	return texts
}

// rotate renames the present file and compresses the file of the previous rotation, like the
// kubelet. The new name contains a time with the seconds second.
func (b *bench) rotate(second int) {
	b.t.Helper()
	at := filepath.Join(b.dir, container)
	old, err := filepath.Glob(at + "/0.log.*")
	check(b.t, err)
	for _, name := range old {
		if strings.HasSuffix(name, ".gz") {
			continue
		}
		text, err := os.ReadFile(name)
		check(b.t, err)
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, err = w.Write(text)
		check(b.t, errors.Join(err, w.Close(), os.WriteFile(name+".gz", packed.Bytes(), 0o644), os.Remove(name)))
	}
	check(b.t, os.Rename(at+"/0.log", fmt.Sprintf("%s/0.log.20261129-1200%02d", at, second)))
}

// TestRotation checks that each line is delivered once, despite rotations, compression, and
// restarts of the container and of podlogd.
func TestRotation(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 3)...)
	b.deliver(r)
	b.want("the first lines", numbered(1, 3)...)
	b.deliver(r)
	b.want("no new lines")
	b.write(container, "0.log", out(4, 5)...)
	b.rotate(1)
	b.write(container, "0.log", out(6, 7)...)
	b.deliver(r)
	b.want("a rotation", numbered(4, 7)...)
	for n := range 3 { // no reader runs, and the file of the position is compressed
		b.write(container, "0.log", out(8+10*n, 17+10*n)...)
		b.rotate(2 + n)
	}
	b.write(container, "0.log", out(38, 40)...)
	b.deliver(b.reader(nodespec.PodLogs{}))
	b.want("three rotations before a restart", numbered(8, 40)...)
	b.write(container, "1.log", out(41, 42)...)
	b.write(container, "0.log", out(43, 43)...) // the last line of the former container
	b.deliver(b.reader(nodespec.PodLogs{}))
	b.want("a new container", append(numbered(43, 43), numbered(41, 42)...)...)
}

// TestRemoved checks that podlogd reports a file that the kubelet has removed before its delivery.
func TestRemoved(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 3)...)
	b.deliver(r)
	b.want("the first lines", numbered(1, 3)...)
	check(t, os.Remove(filepath.Join(b.dir, container, "0.log")))
	b.deliver(r)
	b.want("no file")
	b.write(container, "0.log", out(9, 10)...)
	b.deliver(r)
	b.want("another file", append([]string{"lines are missing: the kubelet removed their file before their delivery"}, numbered(9, 10)...)...)
	check(t, os.RemoveAll(filepath.Join(b.dir, "app_p_0a1b")))
	b.deliver(r)
	if len(r.logs) > 0 || string(b.positions) != `{"containers":{}}` {
		t.Errorf("after the removal of the pod: logs %v, positions %s", r.logs, b.positions)
	}
}

// TestUnreadablePod checks that an unreadable directory of a pod is reported, that podlogd retains
// the positions of the pod, and that it reads the logs of other pods.
func TestUnreadablePod(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 3)...)
	b.deliver(r)
	b.want("the first lines", numbered(1, 3)...)
	b.write("app_q_2c3d/c", "0.log", out(4, 5)...)
	pod := filepath.Join(b.dir, "app_p_0a1b")
	check(t, errors.Join(os.Chmod(b.dir, 0o755), os.Chmod(filepath.Join(b.dir, "app_q_2c3d/c/0.log"), 0o644), os.Chmod(pod, 0)))
	_, err := asNobody(t, func() (bool, error) { return r.pass(t.Context()) })
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "logs of pod app_p_0a1b") {
		t.Errorf("an unreadable directory: %v", err)
	}
	check(t, r.deliver(t.Context()))
	wantTexts(t, b, map[string][]string{"app/q/c": numbered(4, 5)})
	check(t, os.Chmod(pod, 0o755))
	b.write(container, "0.log", out(4, 4)...)
	b.deliver(r)
	wantTexts(t, b, map[string][]string{"app/p/c": numbered(4, 4)})
}

func wantTexts(t *testing.T, b *bench, want map[string][]string) {
	t.Helper()
	if got := b.texts(); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %.500q; want %q", got, want)
	}
}

// asNobody calls the function do without the right of root to read all files.
func asNobody[T any](t *testing.T, do func() (T, error)) (T, error) {
	if os.Geteuid() != 0 {
		return do()
	}
	runtime.LockOSThread() // Setfsuid changes the user of this thread only
	defer runtime.UnlockOSThread()
	check(t, unix.Setfsuid(65534))
	defer func() { check(t, unix.Setfsuid(0)) }()
	return do()
}

// TestPartial checks that the entries of a long line become one record, also after a restart of
// podlogd, and that the memory for incomplete lines is limited.
func TestPartial(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", "stdout P a", "stderr F x", "stdout P b")
	b.deliver(r)
	b.want("an incomplete line", "x")
	b.write(container, "0.log", "stdout F c", "stdout F d")
	b.deliver(r)
	b.want("the end of the line", "abc", "d")
	b.write(container, "0.log", "stdout P a", "stderr F x", "stdout P b")
	b.deliver(r)
	b.want("an incomplete line", "x")
	b.rotate(1)
	b.write(container, "0.log", "stdout F c")
	r = b.reader(nodespec.PodLogs{})
	b.deliver(r)
	b.want("the end of the line after a restart, which repeats the entries of the other stream", "x", "abc")
	part := strings.Repeat("z", maxText/4)
	b.write(container, "0.log", slices.Repeat([]string{"stdout P " + part}, 6)...)
	b.deliver(r)
	b.want("a line without an end", strings.Repeat(part, 4))
	b.write(container, "1.log", "stdout F new")
	b.deliver(r)
	b.want("the rest of this line at the end of the container", strings.Repeat(part, 2), "new")
	r.budget.limit = 10
	b.write(container, "1.log", "stdout P 123456", "stderr P 123456", "stderr F 7")
	b.deliver(r)
	b.want("more than the limit for all incomplete lines", "123456", "7")
	if r.budget.used != 6 {
		t.Errorf("%d bytes are used; want 6", r.budget.used)
	}
	if last := b.positions; !strings.Contains(string(last), `"restart":1`) {
		t.Errorf("%s", last)
	}
}

// TestHostile checks malformed lines, and files and links that a pod can create if it has a volume
// in the directory of logs.
func TestHostile(t *testing.T) {
	b := newBench(t)
	secret := filepath.Join(t.TempDir(), "secret")
	check(t, os.WriteFile(secret, []byte("2026-11-29T12:00:00Z stdout F secret\n"), 0o600))
	b.write(container, "0.log", "stdout F \xff\xfe", "stdout F", "stdin F no", "stdout X no", "stdout P:later tags", "stdout F:later !", "stderr F ")
	f, err := os.OpenFile(filepath.Join(b.dir, container, "0.log"), os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteString("no time\n\n\x00\x00\x00\n2026-11-29T12:00:59Z stdout F " + strings.Repeat("l", 1<<20) + "\n2026-11-29T12:00:59Z stdout F end\n2026-11-29T12:00:59Z stdout F torn")
	check(t, errors.Join(err, f.Close()))
	b.write("app_p_0a1b/other", "1.log", "stdout F file")
	check(t, os.Symlink(secret, filepath.Join(b.dir, "app_p_0a1b/other/0.log")))
	check(t, os.Symlink("../../"+container+"/0.log", filepath.Join(b.dir, "app_p_0a1b/other/2.log")))
	check(t, os.Link(secret, filepath.Join(b.dir, "app_p_0a1b/other/3.log")))
	check(t, os.Symlink(container, filepath.Join(b.dir, "app_p_0a1b/link")))
	check(t, os.Symlink("app_p_0a1b", filepath.Join(b.dir, "kube-public_q_0a1b")))
	b.write("no-pod/c", "0.log", "stdout F no")
	b.write("app_p_0a1b/Container", "0.log", "stdout F no")
	b.write("app_p_0a1b/c2", "x.log", "stdout F no")
	r := b.reader(nodespec.PodLogs{})
	b.deliver(r)
	wantTexts(t, b, map[string][]string{"app/p/c": {"\ufffd", "", "tags!", "", "end"}, "app/p/other": {"file"}})
}

// TestTooManyEntries checks that podlogd reports a directory of logs that has more entries than
// podlogd reads.
func TestTooManyEntries(t *testing.T) {
	b := newBench(t)
	for i := range maxEntries {
		check(t, os.WriteFile(filepath.Join(b.dir, fmt.Sprint(i)), nil, 0o600))
	}
	r := b.reader(nodespec.PodLogs{})
	for range 2 { // one more read of the directory does not clear the problem
		if _, err := r.pass(t.Context()); err == nil || !strings.Contains(err.Error(), "the others are not read") {
			t.Errorf("%d entries: %v", maxEntries, err)
		}
	}
}

// TestLongLine checks a huge line without an end, which a pod with a volume in the directory of
// logs can create as a sparse file. A pass reads only a part of the line, and no part of the line
// becomes a record.
func TestLongLine(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 1)...)
	name := filepath.Join(b.dir, container, "0.log")
	check(t, os.Truncate(name, 4*turnBytes))
	more, err := r.pass(t.Context())
	check(t, err)
	if at := r.logs[Container{"app", "p", "0a1b", "c"}].position.Offset; !more || at < turnBytes || at > 2*turnBytes {
		t.Errorf("more lines: %v, offset %d", more, at)
	}
	b.deliver(r)
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteString("\n")
	check(t, errors.Join(err, f.Close()))
	b.write(container, "0.log", out(2, 3)...)
	b.deliver(r)
	b.want("the lines before and after the huge line", numbered(1, 3)...)
}

// TestManyRemoved checks that the records of many removed containers are delivered in several
// batches. machined would reject a larger batch, and the reader would stop.
func TestManyRemoved(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	const containers = maxRecords/2 + 10
	for i := range containers {
		b.write(fmt.Sprintf("app_p_0a1b/c%d", i), "0.log", "stdout P a", "stderr P b")
	}
	b.deliver(r)
	check(t, os.RemoveAll(filepath.Join(b.dir, "app_p_0a1b")))
	_, err := r.pass(t.Context())
	check(t, err)
	if r.batch.Records >= maxRecords {
		t.Errorf("%d records in memory", r.batch.Records)
	}
	b.deliver(r)
	if len(b.lines) != 2*containers {
		t.Errorf("%d records; want %d", len(b.lines), 2*containers)
	}
}

// TestForgery checks that a pod cannot write a record that looks like a record of the machine.
func TestForgery(t *testing.T) {
	b := newBench(t)
	forged := `{"number":7,"before":"ab","record":"changes","source":"audit","orlop.source":"audit"}`
	b.write(container, "0.log", "stdout F "+forged, "stdout F "+forged)
	b.deliver(b.reader(nodespec.PodLogs{}))
	for _, l := range b.lines {
		if l.Source != "" || l.Number != 0 || l.Before != "" || l.Text != forged || l.Pod["service.name"] != "c" || l.Pod["k8s.pod.uid"] != "0a1b" {
			t.Errorf("%+v", l)
		}
	}
	if len(b.lines) != 2 {
		t.Errorf("%d records", len(b.lines))
	}
}

// TestSelection checks which namespaces a reader selects.
func TestSelection(t *testing.T) {
	for _, c := range []struct {
		settings nodespec.PodLogs
		want     string
	}{
		{nodespec.PodLogs{}, "app default kube-system"},
		{nodespec.PodLogs{Exclude: []string{"kube-system"}}, "app default"},
		{nodespec.PodLogs{Namespaces: []string{"app", "kube-system"}, Exclude: []string{"kube-system"}}, "app"},
	} {
		b := newBench(t)
		for _, namespace := range []string{"app", "default", "kube-system"} {
			b.write(namespace+"_p_0a1b/c", "0.log", "stdout F x")
		}
		b.deliver(b.reader(c.settings))
		var got []string
		for name := range b.texts() {
			namespace, _, _ := strings.Cut(name, "/")
			got = append(got, namespace)
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v; want %s", c.settings, got, c.want)
		}
	}
}

// TestLimit checks that a container is limited by the times of its lines and not by the clock, that
// the receiver gets the number of dropped lines, and that other containers lose no lines.
func TestLimit(t *testing.T) {
	b := newBench(t)
	b.write(container, "0.log", out(1, 2000)...) // 2000 lines in two seconds
	b.write("app_q_0a1b/c", "0.log", out(1, 50)...)
	b.deliver(b.reader(nodespec.PodLogs{LinesPerSecond: 100}))
	var missed uint64
	for _, l := range b.lines {
		missed += l.Missed
		if l.Missed > 0 && (l.Kind != "missed" || l.Severity != "warning" || l.Pod["k8s.pod.name"] != "p") {
			t.Errorf("%+v", l)
		}
	}
	got := b.texts()
	// 500 lines of the burst (five seconds of the limit), 200 lines in the two seconds, and the
	// reports about dropped lines
	if n := len(got["app/p/c"]); n < 690 || n > 710 || len(got["app/q/c"]) != 50 {
		t.Errorf("%d lines of pod p, want about 700; %d lines of pod q, want 50", n, len(got["app/q/c"]))
	}
	if missed == 0 || missed > 1310 {
		t.Errorf("%d lines are reported as missing", missed)
	}
	l := newLimiter(10)
	at := b.clock
	for range 100 {
		l.allow(at, 0)
	}
	if l.dropped != 50 || l.report(at) != 50 || l.report(at) != 0 {
		t.Errorf("%d lines dropped", l.dropped)
	}
	if l.allow(at.Add(-time.Hour), 0) || !l.allow(at, 0) || l.allow(at.Add(time.Second), 1<<20) {
		t.Error("the limiter treats a line of an earlier time, the next line or a long line wrongly")
	}
}

// TestOutage checks that a reader holds at most a single batch while the receiver accepts no
// records. After a restart, no line is lost, and no line that the receiver has accepted is
// repeated.
func TestOutage(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{LinesPerSecond: 1e6})
	b.write(container, "0.log", out(1, 10)...)
	b.deliver(r)
	b.answer = http.StatusServiceUnavailable
	b.write(container, "0.log", out(11, 3*maxRecords)...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan error)
	go func() {
		_, err := r.pass(ctx)
		ended <- err
	}()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if r.batch.Records > maxRecords {
		t.Errorf("%d records in memory", r.batch.Records)
	}
	check(t, r.store(t.Context()))
	b.answer = http.StatusOK
	b.deliver(b.reader(nodespec.PodLogs{LinesPerSecond: 1e6}))
	b.want("all lines", numbered(1, 3*maxRecords)...)
}

// TestDamagedPositions checks that damaged positions cause a repeated delivery and no failure.
func TestDamagedPositions(t *testing.T) {
	b := newBench(t)
	for _, text := range []string{"", "{", "null", `{"containers":{"app_p_0a1b/c":{"restart":-1,"first":"x","offset":-5}}}`} {
		b.positions = []byte(text)
		b.write(container, "0.log", "stdout F x")
		b.deliver(b.reader(nodespec.PodLogs{}))
		if got := b.texts()["app/p/c"]; len(got) == 0 || got[len(got)-1] != "x" {
			t.Errorf("%s: %q", text, got)
		}
	}
}

// TestDamagedFile checks that a reader continues behind compressed files that a power cut has
// damaged.
func TestDamagedFile(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 1)...)
	b.deliver(r)
	b.want("the first line", numbered(1, 1)...)
	for n := range 3 {
		b.write(container, "0.log", out(2+2*n, 3+2*n)...)
		b.rotate(n + 1)
	}
	b.write(container, "0.log", out(8, 9)...)
	packed, err := filepath.Glob(filepath.Join(b.dir, container, "*.gz"))
	check(t, err)
	if len(packed) != 2 {
		t.Fatalf("%v", packed)
	}
	check(t, os.Truncate(packed[0], 40))
	check(t, os.WriteFile(packed[1], nil, 0o644))
	b.deliver(r)
	if got := b.texts()["app/p/c"]; len(got) < 4 || !slices.Equal(got[len(got)-4:], numbered(6, 9)) {
		t.Errorf("%q", got)
	}
}

// TestPositions checks the stored form of the positions, and that they include only delivered
// lines.
func TestPositions(t *testing.T) {
	b := newBench(t)
	r := b.reader(nodespec.PodLogs{})
	b.write(container, "0.log", out(1, 2)...)
	b.deliver(r)
	b.write(container, "0.log", out(3, 3)...)
	_, err := r.pass(t.Context())
	check(t, err)
	check(t, r.store(t.Context()))
	var p positions
	check(t, json.Unmarshal(b.positions, &p))
	info, err := os.Stat(filepath.Join(b.dir, container, "0.log"))
	check(t, err)
	want := Position{First: "2026-11-29T12:00:00.001Z", Offset: info.Size() / 3 * 2}
	if p.Containers[container] != want {
		t.Errorf("%s; want %+v", b.positions, want)
	}
}
