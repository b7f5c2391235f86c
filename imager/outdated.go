package main

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"time"

	"github.com/orlop-os/orlop/imager/debian"
	"github.com/orlop-os/orlop/imager/outdated"
)

// reportOutdated is the command `imager outdated`. It prints which pinned versions are behind, and
// returns the exit status (Report.Exit).
func reportOutdated(args []string) (int, error) {
	flags := flag.NewFlagSet("imager outdated", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print JSON instead of tables")
	all := flags.Bool("all", false, "look up the modules that only other modules need, too")
	if err := flags.Parse(args); err != nil {
		return outdated.ExitFailed, err
	}
	if flags.NArg() > 0 {
		return outdated.ExitFailed, errors.New("only -json and -all are allowed")
	}
	lock, err := debian.ReadLock(lockFile)
	if err != nil {
		return outdated.ExitFailed, err
	}
	now := time.Now()
	answers, err := outdated.Gather(lockFile, lock, debian.NewArchive(lock.Suite, listsDir(defaultCache)), imageScans(), *all, now)
	if err != nil {
		return outdated.ExitFailed, err
	}
	report, err := outdated.Compare(answers, now, *all)
	if err != nil {
		return outdated.ExitFailed, err
	}
	if *asJSON {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return report.Exit(), encoder.Encode(report)
	}
	return report.Exit(), report.Print(os.Stdout)
}

// imageScans returns the programs of the image. Programs with the same build settings are in the
// same scan.
func imageScans() []outdated.Scan {
	var scans []outdated.Scan
	for _, p := range programs {
		i := slices.IndexFunc(scans, func(s outdated.Scan) bool { return s.Dir == p.Module && s.Tags == p.Tags && s.CGO == p.CGO })
		if i < 0 {
			i = len(scans)
			scans = append(scans, outdated.Scan{Dir: p.Module, Tags: p.Tags, CGO: p.CGO, Image: true})
		}
		scans[i].Packages = append(scans[i].Packages, p.Package)
	}
	return scans
}
