package diskprobe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/panics"
)

// short is the deadline of examinations that must exceed it, in a bubble of synctest. long is the
// deadline of examinations that must end in time, even on a busy computer.
const (
	short = 50 * time.Millisecond
	long  = time.Minute
)

func device(name string) Device {
	return Device{Name: name, Path: "/dev/" + name, Size: 1 << 30, SectorSize: 512, Identity: "1 2097152 0", Written: "0 0 0 0"}
}

func blank(d Device) Result { return Result{Disk: d.Path, Size: d.Size} }

// TestOneBadDisk checks that a failing or hanging examination of one disk ends within the deadline
// with an error, and that the other disks are examined.
func TestOneBadDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		for name, bad := range map[string]Run{
			"an examination never returns": func(context.Context, Device, *File) (Result, error) { <-release; return Result{}, nil },
			"an examination ends at the deadline": func(ctx context.Context, _ Device, _ *File) (Result, error) {
				<-ctx.Done()
				return Result{}, errors.New("killed")
			},
			"an examination fails": func(context.Context, Device, *File) (Result, error) {
				return Result{}, errors.New("no answer within its memory")
			},
			"an examination panics": func(context.Context, Device, *File) (Result, error) { panic("no answer within reason") },
		} {
			p := New(func(ctx context.Context, d Device, f *File) (Result, error) {
				if d.Name == "bad" {
					return bad(ctx, d, f)
				}
				return blank(d), nil
			}, short, func() {})
			began := time.Now()
			results := p.All(t.Context(), []Device{device("sda"), device("bad"), device("sdb")}, Cached)
			if took := time.Since(began); took > short {
				t.Errorf("%s: took %v", name, took)
			}
			for _, r := range results {
				if bad := r.Device.Name == "bad"; bad != (r.Err != nil) {
					t.Errorf("%s: %s: %v", name, r.Device.Name, r.Err)
				}
				if r.Err != nil && !strings.Contains(r.Err.Error(), "no answer within") {
					t.Errorf("%s: %v", name, r.Err)
				}
			}
		}
	})
}

// TestBackoff checks that the delay after a failure increases, even for Fresh and while other disks
// are examined, and that a new medium is examined at once.
func TestBackoff(t *testing.T) {
	now := time.Unix(1000, 0)
	asked := map[string]int{}
	var mu sync.Mutex
	p := New(func(_ context.Context, d Device, _ *File) (Result, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[d.Name]++
		if d.Name == "bad" {
			return Result{}, errors.New("nonsense")
		}
		return blank(d), nil
	}, long, func() {})
	p.now = func() time.Time { return now }
	bad, good := device("bad"), device("good")
	look := func(fresh Freshness, want int) {
		t.Helper()
		good.Written += "1" // the good disk is written to continuously
		results := p.All(t.Context(), []Device{bad, good}, fresh)
		if results[0].Err == nil || results[1].Err != nil {
			t.Errorf("%v, %v", results[0].Err, results[1].Err)
		}
		if asked["bad"] != want {
			t.Errorf("the bad disk was examined %d times, want %d", asked["bad"], want)
		}
	}
	for range 5 {
		look(Cached, 1)
		look(Fresh, 1)
	}
	if asked["good"] != 10 {
		t.Errorf("the good disk was examined %d times", asked["good"])
	}
	if next, waits := p.Next(); !waits || !next.Equal(now.Add(minBackoff)) {
		t.Errorf("the next examination is at %v (%v)", next, waits)
	}
	if _, err := p.File(t.Context(), bad, File{Kind: "vfat", Name: "machine.yaml"}); err == nil || asked["bad"] != 1 {
		t.Errorf("error of File during the delay: %v", err)
	}
	now = now.Add(minBackoff)
	look(Cached, 2)
	now = now.Add(minBackoff)
	look(Cached, 2)
	now = now.Add(minBackoff)
	look(Cached, 3)
	bad.Identity = "2 2097152 0"
	look(Cached, 4)
	if retries.Delay(1) != minBackoff || retries.Delay(3) != 4*minBackoff || retries.Delay(100) != maxBackoff {
		t.Errorf("delays of %v, %v, %v", retries.Delay(1), retries.Delay(3), retries.Delay(100))
	}
	p.All(t.Context(), []Device{good}, Cached)
	if len(p.known) != 1 {
		t.Errorf("the prober has records of %d disks, want 1", len(p.known))
	}
}

// TestCached checks that only a Fresh call repeats the examination of a disk without writes, and
// that each call examines a removable medium.
func TestCached(t *testing.T) {
	var asked atomic.Int64
	p := New(func(_ context.Context, d Device, _ *File) (Result, error) { asked.Add(1); return blank(d), nil }, long, func() {})
	look := func(d Device, fresh Freshness, want int64) {
		t.Helper()
		if r := p.All(t.Context(), []Device{d}, fresh); r[0].Err != nil || r[0].Answer.Disk != d.Path || asked.Load() != want {
			t.Errorf("%+v after %d examinations, want %d", r[0], asked.Load(), want)
		}
	}
	d := device("sda")
	look(d, Cached, 1)
	look(d, Cached, 1)
	look(d, Fresh, 2)
	d.Written = "1 8 0 0"
	look(d, Cached, 3)
	d.Removable = true
	look(d, Cached, 4)
	if p := New(func(context.Context, Device, *File) (Result, error) { return Result{}, ErrNoMedium }, long, func() {}); !errors.Is(p.All(t.Context(), []Device{d}, Cached)[0].Err, ErrNoMedium) {
		t.Errorf("an empty drive is reported as a disk")
	} else if _, waits := p.Next(); waits {
		t.Error("an empty drive is in the delay after a failure")
	}
}

// TestConcurrentCallers checks that two concurrent callers share one examination, and that a
// canceled caller does not affect the disk.
func TestConcurrentCallers(t *testing.T) {
	var asked atomic.Int64
	entered, release := make(chan struct{}, 2), make(chan struct{})
	p := New(func(_ context.Context, d Device, _ *File) (Result, error) {
		asked.Add(1)
		entered <- struct{}{}
		<-release
		return blank(d), nil
	}, time.Minute, func() {})
	d := device("sda")
	results := make(chan DeviceResult, 2)
	for range 2 {
		go func() { results <- p.All(t.Context(), []Device{d}, Cached)[0] }()
	}
	<-entered
	close(release)
	for range 2 {
		if r := <-results; r.Err != nil || r.Answer.Disk != d.Path {
			t.Errorf("%+v", r)
		}
	}
	if asked.Load() != 1 {
		t.Errorf("the disk was examined %d times", asked.Load())
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	d.Identity = "2"
	_ = p.All(gone, []Device{d}, Cached) // with or without a result
	if r := p.All(t.Context(), []Device{d}, Cached)[0]; r.Err != nil {
		t.Errorf("the canceled call of a caller started the delay after a failure: %v", r.Err)
	}
}

// TestStuck checks the limits for examinations that hang even after they were killed: one for each
// disk, and maxStuck in total.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		release := make(chan struct{})
		p := New(func(context.Context, Device, *File) (Result, error) {
			running.Add(1)
			<-release
			return Result{}, nil
		}, time.Millisecond, func() {})
		now := time.Unix(1000, 0)
		p.now = func() time.Time { return now }
		for i := range 2 * maxStuck {
			d := device("sda")
			d.Identity = fmt.Sprint(i / 2) // examined twice, then replaced by another disk
			now = now.Add(maxBackoff)
			if r := p.All(t.Context(), []Device{d}, Cached)[0]; r.Err == nil {
				t.Fatal("a hanging examination returned a result")
			}
		}
		for i := range 4 {
			d := device("sdb")
			d.Identity = fmt.Sprint(i)
			if r := p.All(t.Context(), []Device{d}, Cached)[0]; r.Err == nil || !strings.Contains(r.Err.Error(), "hang") {
				t.Errorf("with %d hanging examinations: %v", running.Load(), r.Err)
			}
		}
		if running.Load() != maxStuck {
			t.Errorf("%d examinations hang, want %d", running.Load(), maxStuck)
		}
		close(release)
		d := device("sdc")
		for r := p.All(t.Context(), []Device{d}, Cached)[0]; r.Err != nil && strings.Contains(r.Err.Error(), "hang"); r = p.All(t.Context(), []Device{d}, Cached)[0] {
			now = now.Add(maxBackoff)
			if t.Context().Err() != nil {
				t.Fatal(r.Err)
			}
		}
	})
}

// TestDecode checks that decode rejects a result that no examination can return.
func TestDecode(t *testing.T) {
	d := device("sdb")
	const good = `{"disk":"/dev/sdb","size":1073741824,"table":"gpt","whole":{"kind":"","uuid":"00000000-0000-0000-0000-000000000000"},` +
		`"entries":[{"number":1,"label":"a","type":"00000000-0000-0000-0000-000000000001","uuid":"00000000-0000-0000-0000-000000000002","start":1048576,"size":1048576}],` +
		`"contents":[{"number":1,"content":{"kind":"ext4","uuid":"00000000-0000-0000-0000-000000000000"}}]}`
	if a, err := decode([]byte(good), d, nil); err != nil || a.Content(1).Kind != "ext4" || a.Content(2).Kind != superblock.UnknownData {
		t.Fatalf("%+v, %v", a, err)
	}
	file := &File{MaxSize: 10}
	change := func(old, new string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("the valid result lacks the text %s", old)
		}
		return strings.Replace(good, old, new, 1)
	}
	for name, c := range map[string]struct {
		text string
		file *File
	}{
		"an empty text":                   {"", nil},
		"no JSON":                         {"\x7fELF", nil},
		"half of a result":                {good[:len(good)/2], nil},
		"two results":                     {good + good, nil},
		"null":                            {"null", nil},
		"an unknown field":                {change(`"table"`, `"own":true,"table"`), nil},
		"another disk":                    {change("/dev/sdb", "/dev/sda"), nil},
		"another size":                    {change("1073741824", "1073741825"), nil},
		"a blank disk with partitions":    {change(`"table":"gpt"`, `"table":""`), nil},
		"an escape sequence":              {change(`"label":"a"`, `"label":"\u001b[2J"`), nil},
		"a line break in the table":       {change(`"gpt"`, `"MBR\n"`), nil},
		"a long label":                    {change(`"label":"a"`, `"label":"`+strings.Repeat("a", maxLabel+1)+`"`), nil},
		"partition 0":                     {change(`"entries":[{"number":1`, `"entries":[{"number":0`), nil},
		"partition 129":                   {change(`"entries":[{"number":1`, `"entries":[{"number":129`), nil},
		"a partition behind the end":      {change(`"start":1048576`, `"start":1073741824`), nil},
		"a partition whose end overflows": {change(`"size":1048576}`, `"size":18446744073709551615}`), nil},
		"empty partition":                 {change(`"size":1048576}`, `"size":0}`), nil},
		"the same content twice":          {change(`}}]}`, `}},{"number":1,"content":{"kind":"","uuid":"00000000-0000-0000-0000-000000000000"}}]}`), nil},
		"a file that was not requested":   {change(`"table"`, `"text":"AAAA","table"`), nil},
		"a file that is too long":         {change(`"table"`, `"text":"AAAAAAAAAAAAAAAAAAAAAAAA","table"`), file},
		"a result that is too long":       {good + strings.Repeat(" ", MaxResult), nil},
	} {
		if a, err := decode([]byte(c.text), d, c.file); !errors.Is(err, errInvalid) {
			t.Errorf("%s was accepted: %+v, %v", name, a, err)
		}
	}
	if _, err := decode([]byte(change(`"table"`, `"text":"AAAA","table"`)), d, file); err != nil {
		t.Errorf("result of a request for a file: %v", err)
	}
}

// FuzzAnswer checks that decode accepts no partition outside the disk, and no content on a blank
// disk. The author of a disk can control the result of its examination.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"disk":"/dev/sdb","size":1073741824,"table":""}`))
	f.Add([]byte(`{"disk":"/dev/sdb","size":1073741824,"table":"gpt","entries":[{"number":1,"start":1,"size":1}],"contents":[{"number":1}]}`))
	d := device("sdb")
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := decode(text, d, nil)
		if err != nil {
			return
		}
		for _, e := range a.Entries {
			if e.Start+e.Size > d.Size || e.Start+e.Size < e.Start {
				t.Errorf("partition %d lies outside the disk", e.Number)
			}
		}
		if a.Table == "" && (a.Whole.Kind != "" || len(a.Entries) > 0) && a.Problem == "" {
			t.Error("a blank disk with content is accepted")
		}
	})
}

// TestLateAnswer checks that a Cached call returns the results of other disks without the result of
// a slow disk, and that a notification follows when this result exists. A Fresh call waits for the
// slow disk.
func TestLateAnswer(t *testing.T) {
	release, told := make(chan struct{}), make(chan struct{}, 1)
	p := New(func(_ context.Context, d Device, _ *File) (Result, error) {
		if d.Name == "late" {
			<-release
		}
		return blank(d), nil
	}, time.Minute, func() { told <- struct{}{} })
	p.cachedTimeout = short
	devices := []Device{device("late"), device("sda")}
	if r := p.All(t.Context(), devices, Cached); !errors.Is(r[0].Err, ErrSkipped) || r[1].Err != nil {
		t.Errorf("%v, %v", r[0].Err, r[1].Err)
	}
	needs := make(chan DeviceResult)
	go func() { needs <- p.All(t.Context(), devices, Fresh)[0] }()
	close(release)
	<-told
	if r := p.All(t.Context(), devices, Cached); r[0].Err != nil || r[0].Answer.Disk != "/dev/late" {
		t.Errorf("after the end of the examination: %+v", r[0])
	}
	if r := <-needs; r.Err != nil {
		t.Errorf("a Fresh call: %v", r.Err)
	}
}

// TestPanics checks that a panic in the prober's own code, at any call of its clock, fails the
// examination and leaves no lock and no record behind: the next call gets a result.
func TestPanics(t *testing.T) {
	recorded := make(chan *panics.Error, 100)
	panics.OnPanic(func(e *panics.Error) { recorded <- e })
	t.Cleanup(func() { panics.OnPanic(nil) })
	d := device("sda")
	seen := 0
	for fails := int32(1); ; fails++ {
		p := New(func(_ context.Context, d Device, _ *File) (Result, error) { return blank(d), nil }, short, func() {})
		var calls atomic.Int32
		p.now = func() time.Time {
			if calls.Add(1) == fails {
				panic("no time")
			}
			return time.Now()
		}
		r := p.All(t.Context(), []Device{d}, Fresh)[0]
		if len(recorded) == 0 { // the prober read the clock less often, so no call panicked
			break
		}
		for len(recorded) > 0 {
			<-recorded
		}
		seen++
		if r.Err == nil || !strings.Contains(r.Err.Error(), "no time") {
			t.Errorf("call %d: %v", fails, r.Err)
		}
		if r := p.All(t.Context(), []Device{d}, Fresh)[0]; r.Err != nil {
			t.Errorf("after call %d: %v", fails, r.Err)
		}
	}
	if seen < 2 {
		t.Errorf("only %d readings of the clock panicked", seen)
	}
	// The caller's context has ended, and the callback panics.
	release := make(chan struct{})
	p := New(func(context.Context, Device, *File) (Result, error) { <-release; return blank(d), nil }, time.Minute, func() { panic("no listener") })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := p.All(ctx, []Device{d}, Fresh)[0]; !errors.Is(r.Err, ErrSkipped) {
		t.Errorf("All with a canceled context: %v", r.Err)
	}
	close(release)
	if e := <-recorded; e.Value != "no listener" {
		t.Errorf("recorded %v", e)
	}
}
