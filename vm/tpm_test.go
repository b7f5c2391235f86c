package vm

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestTPM starts the TPM of a machine and sends a command to the TPM, as QEMU does. Then it starts
// the TPM again with the stored state.
func TestTPM(t *testing.T) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		t.Skip("swtpm is not installed, which is a package of Debian (imager/host-packages.txt)")
	}
	spec := MachineSpec{Name: "tpm", Dir: t.TempDir()}
	for range 2 {
		var files sockets
		tpm, number, err := spec.startTPM(&files)
		if err != nil {
			t.Fatal(err)
		}
		if number != 3 || len(files.theirs) != 1 {
			t.Fatalf("the file descriptor for QEMU is %d, and QEMU inherits %d files; want 3 and one file", number, len(files.theirs))
		}
		// On its control channel, swtpm answers CMD_GET_CAPABILITY with the result 0 and the
		// capabilities.
		control, err := net.FileConn(files.theirs[0])
		if err != nil {
			t.Fatal(err)
		}
		control.SetDeadline(time.Now().Add(time.Minute))
		if _, err := control.Write([]byte{0, 0, 0, 1}); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 8)
		if _, err := io.ReadFull(control, answer); err != nil || answer[0]|answer[1]|answer[2]|answer[3] != 0 || answer[6]|answer[7] == 0 {
			t.Errorf("swtpm answers %x, %v, want the result 0 and a capability", answer, err)
		}
		control.Close()
		files.closeTheirs()
		tpm.end(time.Second)
		if _, err := os.Stat(filepath.Join(spec.Dir, tpmDir)); err != nil {
			t.Error(err)
		}
	}
}
