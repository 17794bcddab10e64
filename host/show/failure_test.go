package show

import (
	"strings"
	"testing"

	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// What a cancelled run left is killed only where somebody confirms that.
func TestCancelledIsNotCalledKilledUnseen(t *testing.T) {
	for status, sure := range map[string]bool{
		receipt.CleanupRemoved: true, receipt.CleanupVMGone: true,
		receipt.CleanupIncomplete: false, receipt.CleanupUnknown: false,
	} {
		r := receipttest.Ended("x", receipt.Ending{How: receipt.HowCancelled, By: receipt.ByClient}, nil)
		r.Cleanup.Status = status
		if means := judge(r).means; strings.Contains(means, "killed") != sure {
			t.Errorf("cleanup %s: %q", status, means)
		}
	}
}
