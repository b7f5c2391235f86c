// Command refuses wraps a program that does several jobs, such as machined, so that one job fails.
// The job of a program is the name under which it is executed, or its first argument. The wrapped
// program is a file with the executable of refuses, the original program, and the name of the job.
// If it is executed for this job, it ends immediately with an error. Otherwise it executes the
// original program.
//
//	refuses -pack PROGRAM JOB OUT   writes a wrapped program
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// trailer is the end of the file. It holds the sizes of the program and of the name of the job, in
// bytes.
type trailer struct{ Program, Job uint64 }

var trailerSize = int64(binary.Size(trailer{}))

func main() {
	err := run()
	fmt.Fprintln(os.Stderr, "refuses:", err)
	os.Exit(1)
}

func run() error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	if len(os.Args) == 5 && os.Args[1] == "-pack" {
		if err := pack(self, os.Args[2], os.Args[3], os.Args[4]); err != nil {
			return err
		}
		os.Exit(0)
	}
	end, err := self.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var t trailer
	if err := binary.Read(io.NewSectionReader(self, end-trailerSize, trailerSize), binary.LittleEndian, &t); err != nil {
		return err
	}
	job := make([]byte, t.Job)
	if _, err := self.ReadAt(job, end-trailerSize-int64(t.Job)); err != nil {
		return err
	}
	if filepath.Base(os.Args[0]) == string(job) || len(os.Args) > 1 && os.Args[1] == string(job) {
		return fmt.Errorf("the job %s is disabled", job)
	}
	memory, err := unix.MemfdCreate("program", 0)
	if err != nil {
		return err
	}
	whole := io.NewSectionReader(self, end-trailerSize-int64(t.Job+t.Program), int64(t.Program))
	if _, err := io.Copy(os.NewFile(uintptr(memory), "program"), whole); err != nil {
		return err
	}
	return unix.Exec(fmt.Sprintf("/proc/self/fd/%d", memory), os.Args, os.Environ())
}

// pack writes a wrapped program to out: this executable, the program, the name of the job, and the
// trailer.
func pack(self io.Reader, program, job, out string) error {
	whole, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(out, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, self); err != nil {
		return err
	}
	if _, err := f.Write(append(whole, job...)); err != nil {
		return err
	}
	return binary.Write(f, binary.LittleEndian, trailer{uint64(len(whole)), uint64(len(job))})
}
