package integration

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func (s *story) outsideVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, false, args, 3, 3, "[!] outside DEADLINE REGEXP URL")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	who := &http.Client{Timeout: s.lasts(answerLimit), Transport: &http.Transport{
		DialContext: s.network.DialContext, DisableKeepAlives: true,
		// The verb checks whether a server answers at the address, so it does not verify the
		// certificate.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	began, last := time.Now(), ""
	err = until(s.lasts(deadlineOf(ts, args[0])), func() error {
		text := ""
		r, err := who.Get(args[2])
		if err == nil {
			var body []byte
			body, err = io.ReadAll(r.Body)
			r.Body.Close()
			text = string(body)
		}
		if err != nil {
			text = err.Error()
		}
		last = text
		if (err == nil && re.MatchString(text)) == neg {
			return fmt.Errorf("the answer of %s matches %q: %t: %s", args[2], args[1], neg, text)
		}
		return nil
	})
	s.note("outside: %s: %s (%.1fs)", args[2], strings.TrimSpace(last), time.Since(began).Seconds())
	ts.Check(err)
}

func (s *story) portsVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "ports NAME PORT…")
	var want []int
	for _, a := range args[1:] {
		p, err := strconv.Atoi(a)
		ts.Check(err)
		want = append(want, p)
	}
	slices.Sort(want)
	open, err := s.scan(s.machine(ts, args[0]).Addr().String())
	ts.Check(err)
	s.note("open TCP ports of %s: %v", args[0], open)
	if !slices.Equal(open, want) {
		ts.Fatalf("the open TCP ports of %s are %v, want %v", args[0], open, want)
	}
}

func (s *story) captureVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 0, 0, "capture")
	outside, frames, err := s.outside()
	ts.Check(err)
	s.note("%d frames captured, %d flows to the outside", frames, len(outside))
	if frames == 0 {
		ts.Fatalf("no packet was captured at all")
	}
	if len(outside) > 0 {
		ts.Fatalf("packets for addresses outside the closed network:\n%s", strings.Join(outside, "\n"))
	}
}
