//go:build linux

package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func deviceChecks() []check {
	return []check{
		{"virtio drivers", virtioDrivers},
		{"no network card", noNetworkCard},
		{"no uevent helper", usermodeHelperOff},
		{"random numbers are ready", randomReady},
		{"virtio random number device", hwrng},
		{"clock chip", clockChip},
		{"precise clock of the host (KVM only)", ptp},
		{"pseudo terminals", pseudoTerminals},
		{"no keystroke injection (TIOCSTI)", func() error { return inChild(asUser, "tiocsti") }},
		{"no line discipline by request", func() error { return inChild(asUser, "ldisc") }},
	}
}

func virtioDrivers() error {
	const dir = "/sys/bus/virtio/drivers"
	if err := presentFiles(dir, "virtio_balloon", "virtio_blk", "virtio_console", "virtio_rng",
		"vmw_vsock_virtio_transport"); err != nil {
		return err
	}
	got, err := names(dir)
	if err != nil {
		return err
	}
	return onlyThese(dir, got, "virtio_balloon", "virtio_blk", "virtio_console", "virtio_rng",
		"virtio_rproc_serial", "vmw_vsock_virtio_transport")
}

// randomReady: programs must not wait for entropy.
func randomReady() error {
	_, err := unix.Getrandom(make([]byte, 16), unix.GRND_NONBLOCK)
	return err
}

func hwrng() error {
	got, err := read("/sys/class/misc/hw_random/rng_current")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(got, "virtio_rng") {
		return fmt.Errorf("the current source is %q, want virtio_rng", got)
	}
	f, err := os.Open("/dev/hwrng")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Read(make([]byte, 16)); err != nil {
		return err
	}
	return nil
}

// clockChip: the kernel took the time from it.
func clockChip() error {
	name, err := read("/sys/class/rtc/rtc0/name")
	if err != nil {
		return err
	}
	if !strings.Contains(name, "rtc_cmos") && !strings.Contains(name, "rtc-pl031") {
		return fmt.Errorf("it is %q, want rtc_cmos or rtc-pl031", name)
	}
	if now := time.Now(); now.Year() < 2025 {
		return fmt.Errorf("the time is %v: it was not taken from the chip", now)
	}
	return nil
}

func ptp() error {
	if _, err := os.Stat("/dev/ptp0"); err != nil {
		return note("no /dev/ptp0, as everywhere but under KVM")
	}
	return nil
}

// openPty returns both ends of a new pseudo terminal.
func openPty() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/pts/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}

func pseudoTerminals() error {
	master, slave, err := openPty()
	if err != nil {
		return err
	}
	defer master.Close()
	defer slave.Close()
	if _, err := master.WriteString("typed\n"); err != nil {
		return err
	}
	b := make([]byte, 16)
	n, err := slave.Read(b)
	if err != nil {
		return err
	}
	if string(b[:n]) != "typed\n" {
		return fmt.Errorf("read %q", b[:n])
	}
	return nil
}

// tiocstiChild has a terminal of its own and types into it.
func tiocstiChild([]string) error {
	signal.Ignore(unix.SIGHUP) // which closing the terminal sends
	if _, err := unix.Setsid(); err != nil {
		return err
	}
	master, slave, err := openPty()
	if err != nil {
		return err
	}
	defer master.Close()
	if err := unix.IoctlSetInt(int(slave.Fd()), unix.TIOCSCTTY, 0); err != nil {
		return err
	}
	return wantErr(unix.IoctlSetPointerInt(int(slave.Fd()), unix.TIOCSTI, 'x'), unix.EIO)
}

// lineDisciplineChild asks for PPP's, which the kernel would have to load: it must
// refuse the request (LDISC_AUTOLOAD is off), not look and find nothing.
func lineDisciplineChild([]string) error {
	const nPPP = 3 // N_PPP
	master, slave, err := openPty()
	if err != nil {
		return err
	}
	defer master.Close()
	defer slave.Close()
	return wantErr(unix.IoctlSetPointerInt(int(slave.Fd()), unix.TIOCSETD, nPPP), unix.EPERM)
}
