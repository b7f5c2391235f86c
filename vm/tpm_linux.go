package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// tpmDir is the directory of the TPM's state in the machine's directory. A machine that is started
// again from its directory has the same TPM, with the same keys.
const tpmDir = "tpm"

// tpmLog is the file with the output of swtpm.
const tpmLog = "tpm.log"

// emulatedTPM is an emulated TPM: a process of swtpm, which ends when QEMU ends.
type emulatedTPM struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startTPM starts the TPM of a machine, with a connection to QEMU. It also returns the descriptor
// number that QEMU inherits.
func (s MachineSpec) startTPM(files *sockets) (*emulatedTPM, int, error) {
	state := filepath.Join(s.Dir, tpmDir)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, 0, fmt.Errorf("TPM: %w", err)
	}
	log, err := os.Create(filepath.Join(s.Dir, tpmLog))
	if err != nil {
		return nil, 0, fmt.Errorf("TPM: %w", err)
	}
	defer log.Close()
	ours, number, err := files.pair("tpm")
	if err != nil {
		return nil, 0, err
	}
	defer ours.Close() // the process inherits a copy
	control, err := fileOf(ours)
	if err != nil {
		return nil, 0, fmt.Errorf("TPM: %w", err)
	}
	defer control.Close()
	t := &emulatedTPM{done: make(chan struct{})}
	t.cmd = exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+state, "--ctrl", "type=unixio,clientfd=3", "--terminate")
	t.cmd.ExtraFiles, t.cmd.Stdout, t.cmd.Stderr = []*os.File{control}, log, log
	if err := t.cmd.Start(); err != nil {
		return nil, 0, fmt.Errorf("TPM: %w (swtpm is in Debian's package of that name)", err)
	}
	go func() {
		defer close(t.done)
		t.cmd.Wait()
	}()
	return t, number, nil
}

// fileOf returns a copy of a connection's descriptor.
func fileOf(conn any) (*os.File, error) {
	return conn.(interface{ File() (*os.File, error) }).File()
}

// end waits for the end of the process, so the next process can use the state. After limit, it
// kills the process. For a nil TPM, end returns at once.
func (t *emulatedTPM) end(limit time.Duration) {
	if t == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.cmd.Process.Kill() // fails only if swtpm has already ended
		<-t.done
	}
}

// ReplaceTPM gives a machine another TPM at its next start. It fails if the machine is on.
func ReplaceTPM(m *Machine) error {
	if m.Running() {
		return fmt.Errorf("machine %s: it is on", m.Name())
	}
	if err := os.RemoveAll(filepath.Join(m.spec.Dir, tpmDir)); err != nil {
		return fmt.Errorf("machine %s: cannot replace the TPM: %w", m.Name(), err)
	}
	return nil
}
